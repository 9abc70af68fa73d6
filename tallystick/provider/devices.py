"""On which device a provider computes: one setting for probe, offer and peers. No torch.

`resolve` turns the owner's wish into one device; the probe measures it, the offer names its class,
and `told` hands the very same name to every peer and auditor. A peer whose lease names another
class than it finds itself to be does not begin.
"""

import re
from collections.abc import Mapping

from contracts.terms.errors import WrongConfiguration
from verification.distances.thresholds import class_name

AUTO = "auto"
WISH = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def resolve(wanted: str, num_cuda: int) -> str:
    """The device that a wish names on a machine with so many CUDA devices: `cpu` or `cuda:N`.

    Raises:
        WrongConfiguration: no such device is here, or it is no wish.
    """
    if not WISH.fullmatch(wanted):
        raise WrongConfiguration(f"--device {wanted:.20}: it is auto, cpu, cuda, or cuda:N")
    if wanted == "cpu" or (wanted == AUTO and not num_cuda):
        return "cpu"
    number = int(wanted.partition(":")[2] or 0)
    if number >= num_cuda:
        raise WrongConfiguration(f"--device {wanted}: this machine has {num_cuda} CUDA devices")
    return f"cuda:{number}"


def fits(device: str, wanted: str) -> bool:
    """Whether a device that was measured before is one that the owner wants now."""
    return wanted == AUTO or device == wanted or (wanted == "cuda" and device == "cuda:0")


def told(device: str) -> Mapping[str, str]:
    """What tells peers and auditors where to compute."""
    return {f"TALLYSTICK_{process}_DEVICE": device for process in ("PEER", "AUDIT")}


def check_class(promised: str, own: str) -> None:
    """Refuse to compute as another device class than the one that a lease names.

    What comes of it would be held against the thresholds of the class in the lease, so an honest
    peer could be convicted.

    Raises:
        WrongConfiguration: they are two; the build label of torch makes no difference.
    """
    if class_name(promised) != class_name(own):
        raise WrongConfiguration(
            f"the lease is of a {promised}, and this machine computes as a {own}: start the agent "
            "with the device and torch that it was accepted with, or let it go"
        )
