"""Audits what is drawn for us, one thing at a time, and hands the reports in.

One program for a member, beside its work and in its process, and for an auditor from outside: they
differ in their `Host`. Who is asked follows from the docket of the newest seal, so nothing is
remembered here but what we have said. What cannot be done now is tried again after a pause: until
its deadline it is owed, after that somebody else's. Data that nobody has any more make the report
`missing`.

Invariants: what is wrong with one case keeps nobody from the others: who lies chooses the bytes; a
report is on disk before it is sent, and one draw gets one report, restarts included.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from contracts.governance.sealed import SealedClaim
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import (
    Conflict,
    InvariantBroken,
    Malformed,
    Misbehaved,
    NotFound,
    Refused,
    Unavailable,
)
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.work import Findings, Leaf, WorkClaim, findings_leaf
from training.journal import Journal, Row
from verification.auditing.bundle import ShownClaim
from verification.auditing.host import Host
from verification.auditing.recording import Recording, is_evidence, recording
from verification.auditing.replays import Found, Meter, Source, compared_with_report, sums_to_it
from verification.docket import classes_of, docket_of
from verification.draws.cases import Case
from verification.verdicts import limits_of, seed_for, verdict_of, verdict_on_sum

AGAIN = 0.5  # seconds between two tries
JOURNAL = "audits.sqlite"
REPORT = "report"

Pause = Callable[[float], Awaitable[None]]


Comparing: TypeAlias = Callable[[Source, SealedClaim, bytes], Awaitable[Found]]
"""Does work again, with projections by a seed, and measures: `auditor.compared`."""


class ReportJournal:
    """What we have said, by subject and attempt."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._said: dict[tuple[Digest, int], ShownClaim] = {}
        for row in journal.rows():
            self._note(_decoded(row.data))

    def said(self, case: Case) -> ShownClaim | None:
        """What we have said as this auditor of a draw."""
        return self._said.get((case.subject, case.attempt))

    def keep(self, report: ShownClaim) -> None:
        """Store a report, before it is sent; raises Unavailable."""
        (leaf,) = report.leaves
        data = encode([report.signed.encoded(), leaf.value()])
        self._journal.append([Row(REPORT, data)])
        self._note(report)

    def _note(self, report: ShownClaim) -> None:
        self._said[report.claim.subject, report.claim.attempt] = report


def _decoded(data: bytes) -> ShownClaim:
    match decode(data):
        case [bytes(signed), leaf]:
            return ShownClaim(expect(decode_signed(signed), WorkClaim), (Leaf.from_value(leaf),))
    raise Malformed("the journal of reports is damaged")


class Auditing:
    """Satisfies `training.worker.checking.Auditor`."""

    def __init__(self, compare: Comparing, pause: Pause = asyncio.sleep) -> None:
        self._compare, self._pause = compare, pause

    async def run(self, host: Host) -> None:
        """Audit for ever; cancelled when we are not needed any more.

        Raises:
            Conflict, Malformed, Unavailable: of the journal; see `Journal`.
        """
        with Journal(host.folder / JOURNAL) as journal:
            audit = _Auditor(host, ReportJournal(journal), self._compare)
            while True:
                version = host.changes.version
                owed = docket_of(host.record).owed_by(host.session.peer)
                if [case for case in owed if not await audit.is_done(case)]:
                    await self._pause(AGAIN)
                else:
                    await host.changes.beyond(version)


class _Auditor:
    """Does what one draw asks of us."""

    def __init__(self, host: Host, reports: ReportJournal, compare: Comparing) -> None:
        self._host, self._reports, self._compare = host, reports, compare

    async def is_done(self, case: Case) -> bool:
        """Whether our report was taken, or is wanted no more; made first if it was not."""
        tell = self._host.tell
        try:
            await self._host.reach_coordinator()
            taken = await self._hand_in(self._reports.said(case) or await self._audit(case))
        except (Unavailable, Refused, Misbehaved) as error:
            tell("audit_waits", step=case.step, code=error.code, reason=error.message)
            return False
        except InvariantBroken:
            raise
        except Exception as error:  # a bug that somebody's bytes have found
            code = type(error).__name__
            tell("audit_waits", step=case.step, code=code, reason=str(error))
            return False
        tell("audit_handed_in", step=case.step, subject=case.subject, taken=taken)
        return True

    async def _hand_in(self, report: ShownClaim) -> bool:
        """Whether the coordinator took it."""
        (leaf,) = report.leaves
        try:
            await self._host.hand_in(report.signed, leaf)
        except Conflict:
            return False  # it is not wanted any more
        except (Refused, Misbehaved) as error:
            raise Unavailable(f"the report was not taken: {error.message}") from error
        return True

    async def _audit(self, case: Case) -> ShownClaim:
        """Say what we find; it is stored when this returns."""
        host = self._host
        about = host.work.claim(case.subject).claim
        found = await host.behaviour.report(about, self._agreeing(case), partial(self._look, case))
        report = self._report(case, found)
        self._reports.keep(report)
        told = {"step": case.step, "stage": case.stage, "kind": case.kind, "peer": case.doer}
        host.tell("audited", **told, round=case.round, verdict=found.verdict)
        return report

    async def _look(self, case: Case) -> Findings:
        """What is so; somebody who may be slashed by it can be shown it then."""
        try:
            async with recording(self._host, case) as recorded:
                found = await self._repeated(recorded, case)
                if is_evidence(case, found):
                    await recorded.keep(self._report(case, found))
        except NotFound as error:
            self._host.tell("audit_data_missing", step=case.step, reason=error.message)
            return Findings("missing")
        return found

    async def _repeated(self, recorded: Recording, case: Case) -> Findings:
        host, sealed = self._host, self._host.work.claim(case.work)
        await recorded.ahead(host.work.needed_by(case.subject))
        if case.is_of_sum:
            meter = Meter(host.engine)
            is_same = await sums_to_it(recorded, sealed, host.strategy_for(meter), meter)
            return Findings(verdict_on_sum(case, is_same=is_same))
        limits = self._limits(case)  # without them there is no point in the rest
        found = await self._compare(recorded, sealed, seed_for(case, host.session.peer))
        named = compared_with_report(recorded, case, found)
        if named.keys() != limits.keys():
            raise InvariantBroken("a replay compares other tensors than verdicts follow from")
        distances = tuple(named[name] for name in sorted(named))
        return Findings(verdict_of(case, distances, limits), distances, found.projections)

    def _agreeing(self, case: Case) -> Findings:
        """What somebody says who found no difference, or did not look."""
        if case.is_of_sum:
            return Findings("match")
        limits = self._limits(case)
        distances = (0,) * len(limits)
        return Findings(verdict_of(case, distances, limits), distances, (0,))

    def _limits(self, case: Case) -> dict[str, int]:
        """See `limits_of`: between our device and those of who did the work."""
        record = self._host.record
        return limits_of(docket_of(record).rules, case, self._host.session.peer, classes_of(record))

    def _report(self, case: Case, found: Findings) -> ShownClaim:
        """A report with our signature, the same every time."""
        leaf = findings_leaf(found.verdict, found.distances, found.projections)
        claim = WorkClaim(
            job=self._host.record.job,
            peer=self._host.session.peer,
            previous=ZERO_DIGEST,
            round=case.step,
            what="report",
            group=case.stage,
            seq=0,
            attempt=case.attempt,
            base=ZERO_DIGEST,
            items=(),
            subject=case.subject,
            leaves=claim_leaves_root([leaf]),
            outputs=(),
            reports=(),
        )
        return ShownClaim(self._host.session.sign(claim), (leaf,))
