"""Bodies as JSON: money is text, bytes are hex, nothing else passes."""

from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.bodies.base import read_body
from market.bodies.jobs import StepReport
from market.bodies.market import BeatView, FaucetView

VIEW = FaucetView(gas=10**18, tokens=BaseUnits(5), transactions=(Digest(bytes(32)),))


def test_body__there_and_back__is_equal() -> None:
    assert read_body(FaucetView, VIEW.json_bytes()) == VIEW
    assert b'"gas":"1000000000000000000"' in VIEW.json_bytes()


@pytest.mark.parametrize(
    "body",
    [
        b'{"gas":1,"tokens":"5","transactions":[]}',
        b'{"gas":"1.0","tokens":"5","transactions":[]}',
        b'{"gas":"-1","tokens":"5","transactions":[]}',
        b'{"gas":"1","tokens":"79228162514264337593543950336","transactions":[]}',
        b'{"gas":"1","tokens":"5","transactions":["zz"]}',
        b'{"gas":"1","tokens":"5","transactions":["00"]}',
        b'{"gas":"1","tokens":"5","transactions":[],"more":1}',
        b'{"gas":"1","tokens":"5"}',
        b"[]",
        b"",
    ],
)
def test_read_body__anything_else__is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_body(FaucetView, body)


def test_read_body__number_where_a_number_is_meant__passes() -> None:
    report = b'{"step":1,"loss_millionths":-5,"tokens_per_second":9,"at":7}'

    assert read_body(StepReport, report).loss_millionths == -5


@dataclass(frozen=True)
class Beat:
    """What a body is made of, and something else."""

    queue: object = "chain"
    at: object = UnixMillis(7)
    holder: str = "ann"


def test_of__object_with_the_fields_and_more__takes_the_fields() -> None:
    shown = BeatView.of(Beat(), lag_millis=1, at=UnixMillis(3))

    assert shown == BeatView(queue="chain", at=UnixMillis(3), lag_millis=1)


def test_of__attribute_of_another_type__is_refused() -> None:
    with pytest.raises(ValidationError):
        BeatView.of(Beat(at="7"), lag_millis=1)
