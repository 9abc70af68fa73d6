"""A beacon as bytes, and what a member makes of one that a seal says."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.beacons import BEACON_BYTES, Beacon, check_beacon, decode_beacon
from contracts.terms.errors import InvalidSeal, Malformed, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.messages import StepBeacon

SEAL = Digest(b"s" * 32)
BEACON = Beacon(StepNumber(7), Digest(b"r" * 32), 2**40, Digest(b"c" * 32), SEAL)
UNSEEN = replace(BEACON, batch=ZERO_DIGEST, seal=None)


def said(beacon: Beacon) -> StepBeacon:
    """What the next seal says of it."""
    return StepBeacon(
        job=JobId(bytes(32)), step=StepNumber(8), of=beacon.step,
        batch=beacon.batch, block=beacon.block, beacon=beacon.value,
    )  # fmt: skip


@pytest.mark.parametrize("beacon", [BEACON, UNSEEN])
def test_beacon__encoded_and_said__is_the_beacon_that_we_read_ourselves(beacon: Beacon) -> None:
    assert decode_beacon(beacon.encoded()) == beacon
    assert len(beacon.encoded()) == BEACON_BYTES
    check_beacon(said(beacon), beacon, SEAL)


def test_check_beacon__not_read_yet__waits() -> None:
    with pytest.raises(Unavailable):
        check_beacon(said(BEACON), None, SEAL)


@pytest.mark.parametrize("changed", [{"batch": SEAL}, {"block": 3}, {"value": SEAL}])
def test_check_beacon__another_beacon__is_an_invalid_seal(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSeal, match="another beacon"):
        check_beacon(said(BEACON), replace(BEACON, **changed), SEAL)


@pytest.mark.parametrize("anchored", [Digest(b"x" * 32), ZERO_DIGEST])
def test_check_beacon__anchored_with_what_nobody_signed__is_an_invalid_seal(
    anchored: Digest,
) -> None:
    with pytest.raises(InvalidSeal, match="another seal of step 7"):
        check_beacon(said(BEACON), decode_beacon(replace(BEACON, seal=anchored).encoded()), SEAL)


@pytest.mark.parametrize("data", [b"", BEACON.encoded()[:-1], BEACON.encoded() + b"\0"])
def test_decode_beacon__another_length__is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_beacon(data)
