"""What can this machine do? Measured in a process of its own.

`python -m tallystick.provider.probe [auto|cpu|cuda|cuda:N]` prints one JSON object
(`measured.Measured`): the device, its class, memory in bytes, the FLOP/s of a large fp32 matrix
product, and what these depend on. Its peers compute on that very device (`machine.py`). The
market's hardware challenge (a later version) checks such claims; until then they order nothing but
a quote's seconds.
"""

import sys
import time

import torch

from contracts.terms.errors import WrongConfiguration
from tallystick.provider.machine import AUTO, resolve
from tallystick.provider.measured import Measured, dependencies
from tallystick.resources import Resources, least
from training.stages.exact import device_class, set_threads

_SIZE = 768
_SPELLS, _SPELL_SECONDS = 2, 0.3


def main(arguments: list[str]) -> int:
    """Measure and print."""
    wanted = arguments[0] if arguments else AUTO
    try:
        name = resolve(wanted, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    except WrongConfiguration as error:
        print(error.message, file=sys.stderr)
        return 1
    device = torch.device(name)
    resources = Resources()
    set_threads(resources.threads())
    found = Measured(
        device=name,
        device_class=device_class(device),
        memory_bytes=memory_bytes(device, resources),
        flops_per_second=matmul_flops_per_second(device),
        depends_on=dependencies(resources),
    )
    print(found.model_dump_json())
    return 0


def memory_bytes(device: torch.device, resources: Resources) -> int:
    """Memory of the device, or what this process may use of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return least(resources.memory())


def matmul_flops_per_second(device: torch.device) -> int:
    """FLOP/s of an fp32 product of two square matrices, in the best of several spells.

    A spell lasts for several of the periods (100 ms) in each of which a group has its part of the
    cores: a product alone may fit into such a part, and look as if the cores were all ours.
    """
    left = torch.ones(_SIZE, _SIZE, device=device)
    return max(_spell(left) for _ in range(_SPELLS))


def _spell(left: torch.Tensor) -> int:
    count, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < _SPELL_SECONDS:
        product = left @ left
        float(product[0, 0])  # waits for the device
        count += 1
    return int(2 * _SIZE**3 * count / seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
