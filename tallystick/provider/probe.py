"""What can this machine do? Measured in a process of its own.

`python -m tallystick.provider.probe [auto|cpu|cuda|cuda:N]` prints one JSON object: the device, its
class, memory in bytes, and the FLOP/s of a large fp32 matrix product, best of several. Its peers
compute on that very device (`devices.py`). The market's hardware challenge (a later version) checks
such claims; until then they order nothing but a quote's seconds.
"""

import json
import os
import sys
import time

import torch

from contracts.terms.errors import WrongConfiguration
from tallystick.provider.devices import AUTO, resolve
from training.stages.device_class import device_class

_SIZE = 768
_ROUNDS = 5


def main(arguments: list[str]) -> int:
    """Measure and print."""
    wanted = arguments[0] if arguments else AUTO
    try:
        name = resolve(wanted, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    except WrongConfiguration as error:
        print(error.message, file=sys.stderr)
        return 1
    device = torch.device(name)
    print(
        json.dumps(
            {
                "device": name,
                "device_class": device_class(device),
                "memory_bytes": memory_bytes(device),
                "flops_per_second": matmul_flops_per_second(device),
            }
        )
    )
    return 0


def memory_bytes(device: torch.device) -> int:
    """Memory of the device, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def matmul_flops_per_second(device: torch.device) -> int:
    """FLOP/s of an fp32 product of two square matrices, best of several."""
    left = torch.ones(_SIZE, _SIZE, device=device)
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        product = left @ left
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - began)
    return int(2 * _SIZE**3 / best)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
