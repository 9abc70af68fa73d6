"""What do codecs lose, and how fast are they?

Errors are relative L2 of a million samples, as the table of training.md section 10. Speed is fp32
bytes a CPU second on one thread, the best of several rounds over a tensor larger than the caches.
`python -m tests.benchmarks.codecs` prints a table and one line of JSON. MB = 1e6 bytes.
"""

import json
import platform
import time
from collections.abc import Callable
from typing import get_args

import torch

from contracts.terms.messages import CodecName
from tests.support.tensors import relative_error, samples
from training.compression.codecs import codec
from training.stages.threads import set_threads

ROUNDS, NUM_ELEMENTS = 7, 10_000_000


def megabytes_a_second(action: Callable[[], object]) -> float:
    """Best of `ROUNDS` over `NUM_ELEMENTS` fp32 elements; the first is not counted."""
    action()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        best = min(best, time.process_time() - began)
    return NUM_ELEMENTS * 4 / best / 1e6


def row(name: CodecName, tensor: torch.Tensor) -> dict[str, object]:
    """One codec."""
    chosen = codec(name)
    data = chosen.encode(tensor)
    return {
        "codec": name,
        "bytes an element": round(len(data) / NUM_ELEMENTS, 3),
        "encode MB/s": round(megabytes_a_second(lambda: chosen.encode(tensor))),
        "decode MB/s": round(megabytes_a_second(lambda: chosen.decode(data, tensor.shape))),
    } | {which: f"{relative_error(chosen, drawn):.2g}" for which, drawn in samples().items()}


def main() -> None:
    """Measure and print."""
    set_threads(1)
    tensor = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(0))
    rows = [row(name, tensor) for name in get_args(CodecName)]
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for each in rows:
        print("| " + " | ".join(str(value) for value in each.values()) + " |")
    about = {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({"rows": rows, "machine": platform.machine(), **about}))


if __name__ == "__main__":
    main()
