"""What can this machine do? Measured in a process of its own.

`python -m tallystick.provider.probe` prints one JSON object: device class, memory in bytes, and
the FLOP/s of a large fp32 matrix product, best of several. The market's hardware challenge (a
later version) checks such claims; until then they order nothing but a quote's seconds.
"""

import json
import os
import platform
import time

import torch

_SIZE = 768
_ROUNDS = 5


def main() -> None:
    """Measure and print."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        json.dumps(
            {
                "device_class": device_class(device),
                "memory_bytes": memory_bytes(device),
                "flops_per_second": matmul_flops_per_second(device),
            }
        )
    )


def device_class(device: torch.device) -> str:
    """A name under which equal devices compute equal bytes."""
    if device.type == "cuda":
        return f"cuda/{torch.cuda.get_device_name(device)}/torch-{torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu/{platform.machine()}/{capability}/torch-{torch.__version__}"


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
    main()
