"""Does every family of models compute here what it computes in `transformers`, there and back?

`python -m bench.families` makes a small model of random weights of each (`tests.numerics.families`)
and prints a line for it: read from a folder that `transformers` saved, and written by us.
A distance is the norm of the difference over the norm, of fp32 numbers against the plainest
attention of `transformers`: that of all logits, and the largest of any parameter's gradient.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.measuring import about, limit, markdown, parsed, parser_of
from tests.numerics.families import SAMPLES, Apart, Sample, apart, drawn, filled
from training.config import whole_model
from training.memory import num_parameters
from training.models.folder import read_folder, write_folder


def from_theirs(sample: Sample, folder: Path) -> Apart:
    """Of a folder that `transformers` saved."""
    model = filled(sample)
    model.save_pretrained(folder)
    found = read_folder(folder)
    return apart(found.config, found.weights, model)


def from_ours(sample: Sample, folder: Path) -> Apart:
    """Of a folder that we wrote."""
    weights = drawn(sample.config)
    write_folder(folder, sample.config, weights)
    opened: Any = AutoModelForCausalLM.from_pretrained(folder)
    return apart(sample.config, weights, opened)


def line_of(name: str, sample: Sample, folder: Path) -> dict[str, Any]:
    """A line of the table."""
    theirs, ours = from_theirs(sample, folder / "theirs"), from_ours(sample, folder / "ours")
    return {
        "family": name,
        "model_type": sample.model_type,
        "parameters": num_parameters(sample.config, whole_model(sample.config)),
        "logits, read": f"{theirs.logits:.1e}",
        "gradient, read": f"{theirs.gradient:.1e}",
        "logits, written": f"{ours.logits:.1e}",
        "gradient, written": f"{ours.gradient:.1e}",
        "of": theirs.where.removeprefix("model."),
    }


def main() -> None:
    """Compare all and print."""
    options = parsed(parser_of(__doc__), minutes=10)
    torch.set_num_threads(1)
    lines = []
    with limit(options.minutes, "all families"), tempfile.TemporaryDirectory() as folder:
        for name, sample in SAMPLES.items():
            lines.append(line_of(name, sample, Path(folder) / name))
    print(markdown(lines))
    print(json.dumps({"lines": lines} | about(transformers=transformers.__version__)))


if __name__ == "__main__":
    main()
