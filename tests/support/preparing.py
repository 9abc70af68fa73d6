"""Data to prepare in every kind, and a process that prepares it, which a test kills.

`python -m tests.support.preparing SOURCES FOLDER` saves after every batch, in small shards.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from training.data import prepare as prepare_module
from training.data.prepare import prepare_data, recipe_of

SMALL = {"MAX_SHARD_BYTES": 2**19, "BATCH_CHARACTERS": 2**16, "SAVE_SECONDS": 0.0}
READY = "ready"


def texts(number: int, seed: int = 1) -> list[str]:
    """So many documents in one line each, all different."""
    draw = random.Random(seed)
    return [f"document {i} " + "word " * draw.randrange(120) for i in range(number)]


def write_json_lines(path: Path, documents: list[str]) -> None:
    """A record for each, the text in its field."""
    lines = (json.dumps({"id": i, "text": text}) for i, text in enumerate(documents))
    path.write_text("".join(f"{line}\n" for line in lines))


def table_of(documents: list[str]) -> Any:
    """A table with them in its column `text`."""
    return pyarrow.table({"id": range(len(documents)), "text": documents})


def write_parquet(path: Path, documents: list[str]) -> None:
    """A file of several row groups."""
    parquet.write_table(table_of(documents), path, row_group_size=700, compression="none")


def write_arrow(path: Path, documents: list[str], *, is_stream: bool = True) -> None:
    """An IPC file, or a stream as `datasets` writes it."""
    made, new = table_of(documents), pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with pyarrow.OSFile(str(path), "wb") as file, new(file, made.schema) as writer:
        writer.write_table(made, max_chunksize=300)


def write_saved(folder: Path, documents: list[str]) -> None:
    """A folder as `Dataset.save_to_disk` leaves it."""
    folder.mkdir()
    half = len(documents) // 2
    names = [f"data-0000{n}-of-00002.arrow" for n in (0, 1)]
    for name, part in zip(names, (documents[:half], documents[half:]), strict=True):
        write_arrow(folder / name, part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0f"}
    (folder / "state.json").write_text(json.dumps(state))


def main(sources: str, folder: str) -> None:
    """Prepare what is in `sources`."""
    for name, value in SMALL.items():
        setattr(prepare_module, name, value)
    recipe = recipe_of([f"{sources}/*"])
    print(READY, flush=True)
    found = prepare_data(recipe, Path(folder))
    print(found.manifest.digest().hex(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
