"""Is what is offered what computes, on machines with and without a second kind of device?"""

import re

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.provider.machine import check_class, fits, resolve


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


@pytest.mark.parametrize(
    "own",
    ["cuda/A/torch-2.13.0+cu130", "cpu/x86_64/AVX2/torch-2.9.0+cpu", "cpu/x86_64/AVX512/torch-2"],
)
def test_check_class__another_class_than_that_of_the_lease__does_not_begin(own: str) -> None:
    promised = "cpu/x86_64/AVX2/torch-2.13.0+cpu"

    with pytest.raises(WrongConfiguration, match=re.escape(f"computes as a {own}")):
        check_class(promised, own)
    check_class(promised, "cpu/x86_64/AVX2/torch-2.13.0+cu130")  # the table does not tell them
