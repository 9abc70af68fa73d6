"""What all seals of a job together say of each of its peers."""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from contracts.governance.checking import Standing
from contracts.terms.messages import MILLION
from tests.support.dockets import CheckedJob, audit_spec, peer
from verification.draws.odds import Exposed, stated_odds
from verification.tallies import Rates, Received, Tally, rates_of

ANN, BOB, CEM = (peer(name) for name in ("ann", "bob", "cem"))


@dataclass
class TalliedJob(CheckedJob):
    """A checked job with its tally."""

    tally: Tally = field(default_factory=Tally)

    def seal(self, *said: Any, **changed: Any) -> Standing:
        """The next seal, noted."""
        standing = super().seal(*said, **changed)
        self.tally.note(self.docket, self.step)
        return standing

    def work(self) -> None:
        """A step of all members."""
        names = [name for name in self.workers if peer(name) in self.members]
        self.seal(*(self.commit(name) for name in names))

    def hear(self, name: str, verdict: Any) -> None:
        """The present auditor of `name`'s case says so."""
        self.seal(self.report(self.case_of(name), verdict))

    @property
    def received(self) -> dict[str, Received]:
        """By name."""
        return {self.name_of(each): found for each, found in self.tally.received().items()}


def drawn(**changed: Any) -> TalliedJob:
    """One step of three, and its beacon, which draws all of them."""
    job = TalliedJob(**changed)
    job.work()
    job.seal(job.beacon(1))
    return job


def accused() -> TalliedJob:
    """Ann's first auditor says mismatch, and the second one is drawn."""
    job = drawn()
    job.hear("ann", "mismatch")
    job.seal(job.beacon(3))
    return job


@pytest.mark.parametrize(
    ("said", "received", "convicts"),
    [
        (["mismatch"], Received(1, 0, 1, 0, 0), {"ann"}),
        (["match", "match"], Received(1, 1, 0, 0, 0), {"first"}),
        (["match", "mismatch"], Received(1, 0, 1, 0, 0), {"ann", "second"}),
    ],
)
def test_note__accused__is_one_draw_and_convicts_at_the_seal_that_decides(
    said: list[str], received: Received, convicts: set[str]
) -> None:
    job = accused()
    for verdict in said[:-1]:
        job.hear("ann", verdict)
        job.seal(job.beacon(5))
    named = {"ann": ANN} | dict(
        zip(("first", "second"), (each.auditor for each in job.case_of("ann").heard), strict=False)
    )

    job.hear("ann", said[-1])

    assert job.received["ann"] == received
    assert job.tally.convicted == {named[each]: job.step for each in convicts}
    assert job.tally.done.total() == len(said) + 1


def test_note__confirmed_outside__changes_neither_draw_nor_verdict() -> None:
    job = accused()
    job.hear("ann", "mismatch")
    at = job.step

    job.seal(job.notice("suspension", "ann"), job.beacon(5))
    job.hear("ann", "mismatch")

    assert job.received["ann"] == Received(1, 0, 1, 0, 0)
    assert job.tally.convicted == {ANN: at}


def test_note__nobody_reports__is_unrepeated_and_each_missed_one() -> None:
    job = drawn(outside=())
    while [case for case, _ in job.docket.open.values() if case.doer == ANN]:
        case = job.case_of("ann")
        assert case.auditor is not None
        while job.step + 1 < case.opened + job.audit.deadline:
            job.seal()
        job.seal(job.notice("missed_report", job.name_of(case.auditor), case.subject))

    assert job.received["ann"] == Received(1, 0, 0, 1, 0)
    assert job.tally.missed == Counter([BOB, CEM])


def test_note__missing_for_two__counts_once() -> None:
    job = drawn()
    case = job.case_of("ann")
    job.seal(job.report(case, "missing"), job.notice("missing_data", "ann", case.subject))
    job.seal(job.beacon(3))

    job.hear("ann", "missing")

    assert job.received["ann"] == Received(1, 0, 0, 0, 1)


def test_copy__noted_further__leaves_the_first_as_it_was() -> None:
    job = drawn()
    before, kept = job.tally.copy(), job.tally.copy()

    job.hear("ann", "match")
    job.work()

    assert before == kept
    assert before != job.tally
    assert len(before.exposed[ANN]) == 1 and len(job.tally.exposed[ANN]) == 2
    assert job.tally.worked[ANN] == (1, job.step)


def test_odds__several_steps__are_those_that_the_audit_states() -> None:
    job = drawn(audit=audit_spec(floor=MILLION // 10))
    for _ in range(3):
        job.work()
    terms = job.docket.rules.terms

    found = job.tally.odds(terms, (2,))

    assert found[ANN] == stated_odds(terms, job.tally.exposed[ANN], (2,))
    assert [each.falsified for each in found[ANN]] == [2, 4]
    assert found[ANN][1].strangers == Fraction(9, 10) ** 4


@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        ([Fraction(1, 2)], Rates(500_000, 500_000, 500_000)),
        ([Fraction(1, 3), Fraction(1)], Rates(333_334, 666_667, 1_000_000)),
    ],
)
def test_rates_of__parts_of_a_millionth__are_rounded_up(
    rates: list[Fraction], shown: Rates
) -> None:
    assert rates_of([Exposed(rate, None) for rate in rates]) == shown
