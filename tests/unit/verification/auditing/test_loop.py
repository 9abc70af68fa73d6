"""What a repeat compares, and what becomes of the other cases when one cannot be audited."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.terms.amounts import Flops
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Digest, StageIndex, StepNumber
from contracts.terms.messages import AuditReport, Verdict
from tests.support.dockets import peer
from tests.support.history import make_digest
from verification.auditing.job import AuditedJob
from verification.auditing.loop import (
    Auditing,
    apart,
    make_report,
    report_on_sum,
    seed_for,
    seed_of,
)
from verification.distances.thresholds import SATURATED
from verification.docket import Docket
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import Rules, Weights

WORK = Case(
    make_digest("work"),
    "work",
    peer("ann"),
    StageIndex(0),
    StepNumber(3),
    StepNumber(3),
    Flops(10),
    make_digest("work"),
    peer("ann"),
    beacon=make_digest("beacon 3"),
)


def test_seed_for__work__is_the_auditors_own() -> None:
    assert seed_for(WORK, peer("bob")) == seed_of(make_digest("beacon 3"), peer("bob"))
    assert seed_for(WORK, peer("bob")) != seed_for(WORK, peer("cem"))


def test_seed_for__repeat__is_that_of_the_report_whoever_repeats_it() -> None:
    beacons = {"beacon": make_digest("beacon 5"), "seeded_by": make_digest("beacon 3")}
    again = replace(WORK, kind="report", doer=peer("bob"), **beacons)  # type: ignore[arg-type]

    assert seed_for(again, peer("out")) == seed_for(WORK, peer("bob"))
    assert seed_for(again, peer("oda")) == seed_for(again, peer("out"))


@pytest.mark.parametrize(
    ("stated", "replayed", "distance"),
    [
        ((), (), 0),
        ((5, -7), (5, -7), 0),
        ((5, -7), (6, -4), 3000),
        ((0,), (5, -7), SATURATED),
        ((-(2**63),), (2**63 - 1,), SATURATED),
    ],
)
def test_apart__numbers_after_each_unit__are_the_farthest_in_1e_9(
    stated: tuple[int, ...], replayed: tuple[int, ...], distance: int
) -> None:
    assert apart(stated, replayed) == distance


SUM = replace(WORK, kind="sum", order=(peer("bob"),))
OTHER_SUM = replace(SUM, subject=make_digest("other sum"))


class Enough(Exception):
    """What ends an auditor in a test."""


async def stop(_seconds: float) -> None:
    raise Enough


@dataclass
class Asked:
    """A job in which bob owes two sums; satisfies as much of `AuditedJob` as these take."""

    sums_to_none: bool = False
    told: list[dict[str, Any]] = field(default_factory=list)
    handed_in: list[AuditReport] = field(default_factory=list)
    peer = peer("bob")
    version = 1

    @property
    def record(self) -> SimpleNamespace:
        """With the docket that is all an auditor reads of it here."""
        cases: dict[Digest, tuple[Case, Weights]] = {
            case.subject: (case, {}) for case in (SUM, OTHER_SUM)
        }
        return SimpleNamespace(
            job=make_digest("job"), checking=Docket(cast(Rules, None), open=cases)
        )

    def tell(self, event: str, **fields: Any) -> None:
        """Note it."""
        self.told.append({"event": event, **fields})

    def reported(self, _subject: Digest, _attempt: int) -> None:
        """Nothing yet."""

    async def say(
        self, _agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """The truth."""
        return await replay()

    async def hand_in(self, report: AuditReport) -> bool:
        """Take it."""
        self.handed_in.append(report)
        return True

    async def sums_to(self, name: Digest) -> Digest | None:
        """What was bound, unless nothing can be added up."""
        return None if self.sums_to_none else name

    def bound_mean(self, name: Digest) -> Digest:
        """Its own name: there is no other digest here."""
        return name


def audited_by(asked: Asked, error: Exception) -> Auditing:
    """Who runs into `error` over one case, and finds the other one to be right."""

    async def report_on(_audited: AuditedJob, case: Case) -> AuditReport:
        if case.subject == SUM.subject:
            raise error
        return make_report(cast(AuditedJob, asked), case, "match")

    return Auditing(report_on, stop)


async def test_auditing__a_bug_shows_in_one_case__is_told_and_the_next_one_is_audited() -> None:
    asked = Asked()

    with pytest.raises(Enough):
        await audited_by(asked, ValueError("no integer is nan")).run(cast(AuditedJob, asked))

    assert [report.subject for report in asked.handed_in] == [OTHER_SUM.subject]
    (waits,) = (line for line in asked.told if line["event"] == "audit_waits")
    assert (waits["code"], waits["reason"]) == ("ValueError", "no integer is nan")


async def test_auditing__we_are_broken__ends() -> None:
    asked = Asked()

    with pytest.raises(InvariantBroken):
        await audited_by(asked, InvariantBroken("here")).run(cast(AuditedJob, asked))


@pytest.mark.parametrize(("is_none", "verdict"), [(False, "match"), (True, "mismatch")])
async def test_report_on_sum__parts_that_nobody_can_add_up__is_a_mismatch(
    is_none: bool, verdict: str
) -> None:
    asked = Asked(sums_to_none=is_none)

    report = await report_on_sum(cast(AuditedJob, asked), SUM)

    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("said", "is_none", "verdict"),
    [
        ("match", False, "match"),
        ("match", True, "mismatch"),
        ("mismatch", False, "mismatch"),
        ("mismatch", True, "match"),
    ],
)
async def test_report_on_sum__repeat_of_a_report__agrees_if_it_finds_what_that_said(
    said: Verdict, is_none: bool, verdict: Verdict
) -> None:
    asked = Asked(sums_to_none=is_none)
    case = repeat_of(SUM, Heard(peer("bob"), said, make_digest("report")), StepNumber(5))

    report = await report_on_sum(cast(AuditedJob, asked), case)

    assert (report.subject, report.verdict) == (make_digest("report"), verdict)
    assert not report.distances and not report.projections
