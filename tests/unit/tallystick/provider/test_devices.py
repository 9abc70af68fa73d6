"""Is what is offered what computes, on machines with and without a second kind of device?"""

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.provider.devices import check_class, fits, resolve

CLASSES = {"cpu": "cpu/x86_64/torch-2", "cuda:0": "cuda/A/torch-2", "cuda:1": "cuda/B/torch-2"}
"""An emulated machine: its devices, and what the probe says of each."""


@pytest.mark.parametrize(
    ("wanted", "num_cuda", "found"),
    [
        ("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"), ("cuda:1", 2, "cuda:1"),
    ],
)  # fmt: skip
def test_resolve__wish__names_one_device(wanted: str, num_cuda: int, found: str) -> None:
    assert resolve(wanted, num_cuda) == found
    assert fits(found, wanted)


@pytest.mark.parametrize(("wanted", "num_cuda"), [("cuda", 0), ("cuda:2", 2), ("tpu", 1)])
def test_resolve__no_such_device__is_refused(wanted: str, num_cuda: int) -> None:
    with pytest.raises(WrongConfiguration, match=f"--device {wanted}"):
        resolve(wanted, num_cuda)


def test_check_class__peer_on_another_kind_of_device_than_its_lease__does_not_begin() -> None:
    with pytest.raises(WrongConfiguration, match="would compute on cpu"):
        check_class(CLASSES["cuda:0"], "cpu")
    check_class("a class of a test", "cpu")
