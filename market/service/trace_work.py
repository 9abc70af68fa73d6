"""One peer-step from its WorkClaim to the money: seal, anchor, beacon, draw, audits, pay, claims.

Each part is proved by the functions that coordinator, members, claims and the offline audit use;
nothing is derived in another way, so a reader who folds the paths finds the same roots. The caller
is in a transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from contracts.governance.claims import PayTree
from contracts.governance.rounds import flops_of
from contracts.terms import merkle
from contracts.terms.errors import InvariantBroken, NotFound
from contracts.terms.history import Kept, Leaves, decode_kept, prove_message
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StepNumber
from contracts.terms.items import count
from contracts.terms.merkle import Proof, batch_leaf, earned_leaf, plain_leaf, plain_root
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim, findings_of
from market.bodies.tracing import (
    AnchoredView,
    AuditsView,
    ClaimView,
    DistanceView,
    DrawView,
    PaySlipView,
    PlainStep,
    ReportView,
    RoundView,
    RulingView,
    SealedView,
    StepBeaconView,
    WorkTraceView,
)
from market.domain.earnings import paid_parts, parts_of, state_of
from market.service.account_pay import claims_of, own_pay
from market.service.coding import decode_pay, items, name_digest, seal_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, MessageRow, SealRow
from market.service.show_beacons import seals_on_chain
from market.service.show_earnings import drawn_of
from verification.docket import Docket
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import drawable, is_drawn, ordering_beacon, prf, step_beacon
from verification.earnings import Line
from verification.tallies import Report
from verification.verdicts import limits_of

_KIND = str(WorkClaim.model_fields["kind"].default)


async def trace_work(
    job: JobId,
    step: StepNumber,
    peer: PeerId,
    seq: int,
    *,
    work: UnitOfWork,
    followed: FollowedJobs,
) -> WorkTraceView:
    """The trace of what `peer` claims under `seq` to have done in round `step`.

    Raises:
        NotFound: no such job, or no seal holds such a claim.
    """
    row = await find_job(job, work)
    claim = await _claim(job, (peer, "work", step, seq), work)
    found = await followed.load(job, row.num_messages, work)
    async with found.going_on:  # the fold stands still meanwhile
        line = None if claim is None else found.earnings.of_subject.get(claim.digest())
        if claim is None or line is None:
            raise NotFound("no seal holds such work", step=step, peer=peer.hex(), seq=seq)
        standing = found.earnings.of_line(line)
        parts = parts_of(standing, (await own_pay(line.account, [row], work))[job])
        claims = await claims_of(job, line.account, work)
        return WorkTraceView.of(
            line,
            job=job,
            amount=standing.amount,
            state=state_of(standing, parts),
            parts=parts,
            work_claim=ClaimView.of(
                claim, claim=line.subject, units=count(claim.items), buckets=len(claim.outputs)
            ),
            sealed=await _sealed(job, line.sealed, line.subject, work),
            anchored=await _anchored(job, line.sealed, work),
            audits=await _audits(claim, line, found, job, work),
            pay=await _pay_slip(job, line, work),
            claims=paid_parts(standing, claims),
        )


async def _claim(job: JobId, name: tuple[object, ...], work: UnitOfWork) -> WorkClaim | None:
    """The claim of this name (`WorkClaim.stated_name`, after kind and job), sealed or not."""
    item = await _stored(job, (_KIND, job, *name), work)
    message = item.message if isinstance(item, Signed) else None
    return message if isinstance(message, WorkClaim) else None


async def _stored(job: JobId, name: tuple[object, ...], work: UnitOfWork) -> Kept | None:
    rows = await work[MessageRow].where(job=job, name=name_digest(name))
    return decode_kept(rows[0].data) if rows else None


async def _sealed(job: JobId, step: StepNumber, name: Digest, work: UnitOfWork) -> SealedView:
    """A message under the seal of a step.

    Raises:
        NotFound: the step is not sealed, or its seal holds no such message.
    """
    row = await work[SealRow].get(job, step)
    if row is None:
        raise NotFound("no such step is sealed", step=step)
    seal = seal_of(row).message
    under = [Digest(each) for each in items(row.under) if isinstance(each, bytes)]
    if plain_root(under) != seal.messages_root:
        raise InvariantBroken(f"step {step}: the messages stored are not those of its seal")
    index, proof = prove_message(under, name)
    return SealedView.of(
        seal, seal=row.digest, leaf=plain_leaf(name), index=index, siblings=_plain(proof)
    )


async def _anchored(job: JobId, step: StepNumber, work: UnitOfWork) -> AnchoredView | None:
    """A seal in its batch; None while none on chain holds it."""
    _, anchor = (await seals_on_chain(job, [step], work)).get(step, (None, None))
    if anchor is None:
        return None
    rows = await work[BatchEntryRow].where(root=anchor.batch)
    entries = sorted((each.job, each.step, each.seal) for each in rows)
    index = next(i for i, (of, at, _) in enumerate(entries) if (of, at) == (job, step))
    leaves = [batch_leaf(*entry) for entry in entries]
    path = merkle.prove(leaves, index)
    return AnchoredView(anchor=anchor, leaf=leaves[index], index=index, siblings=_plain(path))


def _plain(proof: Proof) -> tuple[PlainStep, ...]:
    return tuple(PlainStep(hash=sibling, left=left) for sibling, left in proof.siblings)


# ----------------------------------------------------------------------------------------- audits


async def _audits(
    claim: WorkClaim, line: Line, found: Followed, job: JobId, work: UnitOfWork
) -> AuditsView | None:
    """The audits of a line's message, with its reports as they were signed; None: never drawn."""
    record = found.history.record
    if line.rate is None or record is None or not isinstance(record.checking, Docket):
        return None
    flops = flops_of(record.checking.rules.spec, claim)
    case = drawable(claim, flops, line.rate, {}, line.sealed).case
    return await _Audits(found, record.checking, job, work).view(claim, line, case)


@dataclass(frozen=True)
class _Audits:
    """What a fold, which stands still, and the rows know of a job's audits."""

    found: Followed
    docket: Docket
    job: JobId
    work: UnitOfWork

    async def view(self, claim: WorkClaim, line: Line, case: Case) -> AuditsView:
        """Of the message of a line."""
        traces, subject, heard = self.found.traces, case.subject, []
        rounds = tuple(
            RoundView.of(each, round=each.number, drawn_in=each.drawn, auditors=each.order)
            for each in traces.rounds.get(subject, ())
        )
        for report in traces.reports.get(subject, ()):
            distances = tuple(await self._distances(case, report))
            repeat = await self._repeat(case, report, rounds)
            heard.append(ReportView.of(report, distances=distances, repeat=repeat))
        return AuditsView(
            subject=subject,
            draw=self._draw(claim, line),
            rounds=rounds,
            reports=tuple(heard),
            rulings=tuple(map(RulingView.of, traces.rulings.get(subject, ()))),
            outcome=self.found.tally.outcome_of(subject),
        )

    async def _repeat(
        self, case: Case, report: Report, rounds: Sequence[RoundView]
    ) -> AuditsView | None:
        """A report's own audits from outside; None if it is never drawn."""
        line = self.found.earnings.of_subject.get(report.report)
        if line is None or line.rate is None:
            return None
        name = (report.auditor, "report", case.subject, report.attempt)
        said = await _claim(self.job, name, self.work)
        assert said is not None  # as a seal holds it
        beacon = next(each.beacon for each in rounds if each.round == report.round)
        counted = Heard(report.auditor, report.verdict, report.report)
        seeded = repeat_of(replace(case, beacon=beacon), counted, report.sealed)
        return await self.view(said, line, seeded)

    def _draw(self, claim: WorkClaim, line: Line) -> DrawView:
        """What decided whether `claim` is audited: drawn iff the PRF, as a fraction, is below q."""
        drawn, trace = drawn_of(line, self.found), self.found.traces.steps.get(line.sealed)
        assert drawn is not None and line.rate is not None  # else nobody asks
        beacon, name = None if trace is None else trace.beacon, claim.draw_name()
        drawn_by = value = ordering = None
        if beacon is not None:
            ordering = ordering_beacon(beacon.job, beacon.of, beacon.beacon)
            # As the docket draws: without a batch that is served, everything of the step is.
            if beacon.batch != ZERO_DIGEST:
                drawn_by = step_beacon(beacon.job, beacon.of, beacon.beacon)
            if drawn_by is not None:
                value = Digest(prf(drawn_by, name).to_bytes(32, "big"))
            if is_drawn(drawn_by, name, line.rate) != drawn.drawn:
                subject = line.subject.hex()
                raise InvariantBroken(f"the draw of {subject} is not that of its beacon")
        return DrawView.of(
            drawn,
            name=name,
            beacon=None if beacon is None else StepBeaconView.of(beacon, said_in=beacon.step),
            step_beacon=drawn_by,
            ordering_beacon=ordering,
            prf=value,
        )

    async def _distances(self, case: Case, report: Report) -> Iterable[DistanceView]:
        kept = await _stored(self.job, ("leaves", report.report), self.work)
        assert isinstance(kept, Leaves)  # as a seal holds the report
        found = findings_of(kept.leaves)
        if not found.distances:  # then nothing was compared
            return ()
        allowed = limits_of(self.docket.rules, case, report.auditor, self.docket.classes)
        return (
            DistanceView(name=name, distance=distance, allowed=allowed[name])
            for name, distance in zip(sorted(allowed), found.distances, strict=True)
        )


# -------------------------------------------------------------------------------------------- pay


async def _pay_slip(job: JobId, line: Line, work: UnitOfWork) -> PaySlipView | None:
    """The account's leaf in the seal that vested a line; None: nothing of it has vested."""
    if line.resolved is None or line.lost_by:
        return None
    row = await work[SealRow].get(job, line.resolved)
    assert row is not None  # it has vested the line
    leaves = decode_pay(row.pay)
    if all(leaf.account != line.account for leaf in leaves):
        return None  # not worth a base unit so far
    leaf, path = PayTree(leaves).prove(line.account)
    return PaySlipView.of(
        leaf,
        step=line.resolved,
        seal=row.digest,
        pay_root=seal_of(row).message.pay_root,
        leaf=earned_leaf(leaf.account, leaf.earned, leaf.vested),
        index=leaves.index(leaf),
        siblings=tuple(
            PlainStep(hash=sibling, left=bool(path.sides >> place & 1))
            for place, sibling in enumerate(path.siblings)
        ),
        anchored=await _anchored(job, line.resolved, work),
    )
