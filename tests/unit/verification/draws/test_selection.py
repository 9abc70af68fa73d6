"""Beacons and draws: the same for everybody, to the last bit."""

from bisect import bisect
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, islice

import pytest

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StepNumber
from tests.support.dockets import CheckedJob
from tests.support.history import make_digest
from verification.draws import selection as draws
from verification.draws.selection import again, auditor_order, is_drawn, prf, step_beacon

JOB, BLOCK_HASH = JobId(b"j" * 32), Digest(b"h" * 32)
BEACON = digest("test", b"beacon")
PEERS = [PeerId(bytes([n]) * 32) for n in range(4)]


def name_of(number: int) -> bytes:
    """Of something that may be drawn."""
    return again(make_digest(number), 1)


def names() -> list[bytes]:
    """Of claims of all kinds that differ in one part of their names each, and of later rounds."""
    job = CheckedJob()
    ann, bucket = job.commit("ann"), job.chunk("ann")
    output = bucket.outputs[0].model_copy(update={"bucket": 1})
    claims = [
        ann,
        job.commit("bob"),
        *(ann.model_copy(update={field: 1}) for field in ("seq", "group")),
        ann.model_copy(update={"round": 2}),
        bucket,
        bucket.model_copy(update={"outputs": (output,)}),
    ]
    job.seal(*claims[:2])
    job.seal(job.beacon(1))
    report = job.report(job.case_of("ann"), "match").claim
    reports = [report, report.model_copy(update={"subject": make_digest("another")})]
    reports.append(report.model_copy(update={"attempt": report.attempt + 1}))
    later = [again(ann.digest(), number) for number in (1, 2)]
    return [*(each.draw_name() for each in [*claims, *reports]), *later]


NAMES = names()


def test_step_beacon__job_step_or_block__each_changes_it() -> None:
    beacons = {
        step_beacon(JOB, StepNumber(1), BLOCK_HASH),
        step_beacon(JOB, StepNumber(2), BLOCK_HASH),
        step_beacon(JobId(b"k" * 32), StepNumber(1), BLOCK_HASH),
        step_beacon(JOB, StepNumber(1), Digest(b"i" * 32)),
    }

    assert len(beacons) == 4


def test_step_beacon__recorded_too_late__is_none() -> None:
    assert step_beacon(JOB, StepNumber(1), ZERO_DIGEST) is None


def test_prf__every_name__has_its_own_number() -> None:
    assert len({prf(BEACON, each) for each in NAMES}) == len(NAMES)


@pytest.mark.parametrize("each", NAMES)
def test_is_drawn__checking_off__is_nobody_whatever_the_beacon(each: bytes) -> None:
    assert not is_drawn(BEACON, each, Fraction(0))
    assert not is_drawn(None, each, Fraction(0))


@pytest.mark.parametrize("each", NAMES)
def test_is_drawn__rate_of_one_or_beacon_too_late__is_everybody(each: bytes) -> None:
    assert is_drawn(BEACON, each, Fraction(1))
    assert is_drawn(None, each, Fraction(1, 20))


def test_is_drawn__rate_around_the_prf__turns_exactly_there() -> None:
    number = prf(BEACON, name_of(1))

    assert not is_drawn(BEACON, name_of(1), Fraction(number, 2**256))
    assert is_drawn(BEACON, name_of(1), Fraction(number + 1, 2**256))


def whole_order(number: int, weights: dict[PeerId, int]) -> list[PeerId]:
    """Everybody, the first to audit first."""
    return list(auditor_order(BEACON, name_of(number), weights))


def test_auditor_order__candidates_in_any_order__is_the_same_and_whole() -> None:
    weights = {peer: weight for weight, peer in enumerate(PEERS, start=1)}
    order = whole_order(1, weights)

    assert order == whole_order(1, dict(reversed(weights.items())))
    assert sorted(order) == sorted(PEERS)
    assert order != whole_order(3, weights) or order != whole_order(4, weights)


def test_auditor_order__three_of_many__are_the_first_of_all_and_the_only_ones_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = {PeerId(make_digest("peer", number)): number for number in range(1, 100)}
    whole, beacons = whole_order(1, many), list[bytes]()

    def counted(beacon: Digest, name: bytes) -> int:
        beacons.append(name)
        return prf(beacon, name)

    monkeypatch.setattr(draws, "prf", counted)

    first = list(islice(auditor_order(BEACON, name_of(1), many), 3))

    assert first == whole[:3] and len(beacons) == 3
    assert whole == [peer for peer, _ in by_definition(many)]


def by_definition(weights: dict[PeerId, int]) -> Iterator[tuple[PeerId, int]]:
    """Draws without replacement, each by the running sum of the weights that are left."""
    left = sorted(weights.items())
    for place in range(len(left)):
        number = prf(BEACON, name_of(1) + encode(["auditor", place]))
        sums = list(accumulate(weight for _, weight in left))
        yield left.pop(bisect(sums, number * sums[-1] // 2**256))


def test_auditor_order__three_times_the_weight__is_first_three_times_as_often() -> None:
    weights = {PEERS[0]: 3, PEERS[1]: 1}
    first = sum(whole_order(n, weights)[0] == PEERS[0] for n in range(600))

    assert 400 < first < 500


def test_auditor_order__weight_of_zero__is_our_own_bug() -> None:
    with pytest.raises(InvariantBroken):
        whole_order(1, {PEERS[0]: 0})
    assert whole_order(1, {}) == []
