"""One peer-step from its GradCommit to the money: seal, anchor, beacon, draw, audits, pay, claims.

Each part is proved by the functions that coordinator, members, claims and the offline audit use;
nothing is derived in another way, so a reader who folds the paths finds the same roots. The caller
is in a transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contracts.governance.claims import PayTree
from contracts.terms import merkle
from contracts.terms.amounts import Flops
from contracts.terms.errors import InvariantBroken, NotFound
from contracts.terms.history import decode_kept, kept_digest, messages_root, prove_message
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StepNumber
from contracts.terms.merkle import Proof, batch_leaf, earned_leaf, plain_leaf
from contracts.terms.messages import UNDER_A_SEAL, AuditReport, GradCommit, Message
from contracts.terms.signatures import Signed
from market.bodies.earnings import ClaimPartView, PartsView
from market.bodies.tracing import (
    AnchoredView,
    AuditsView,
    CommitView,
    DistanceView,
    DrawView,
    PaySlipView,
    PlainStep,
    ReportView,
    RoundView,
    RulingView,
    SealedView,
    WorkTraceView,
)
from market.domain.earnings import paid_parts, parts_of, state_of
from market.service.account_pay import claims_of, own_pay
from market.service.coding import decode_pay, name_digest, seal_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, MessageRow, SealRow
from market.service.show_beacons import seals_on_chain
from market.service.show_earnings import drawn_of
from market.service.show_steps import beacon_view
from verification.docket import Docket
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import (
    PeerStep,
    Repeat,
    Subject,
    is_drawn,
    ordering_beacon,
    peer_step,
    prf,
    step_beacon,
)
from verification.earnings import Line, Standings
from verification.traces import Report
from verification.verdicts import limits_of

MAX_UNDER_A_SEAL = 50_000


async def trace_work(
    job: JobId,
    step: StepNumber,
    peer: PeerId,
    number: int,
    *,
    work: UnitOfWork,
    followed: FollowedJobs,
) -> WorkTraceView:
    """The trace of what `peer` did in round `number` of a sealed step.

    Raises:
        NotFound: no such job, or no such peer-step in any seal.
    """
    row = await find_job(job, work)
    found = await followed.load(job, row.num_messages, work)
    standing = _standing(found, step, peer, number)
    line = standing.line
    audits = _Audits.of(found, line)  # before anything else is waited for
    commit = await _commit(job, line, work)
    parts = parts_of(standing, (await own_pay(line.account, [row], work))[job])
    claims = await claims_of(job, line.account, work)
    return WorkTraceView.of(
        line,
        job=job,
        amount=standing.amount,
        state=state_of(standing, parts),
        parts=PartsView.of(parts),
        commit=CommitView.of(
            commit,
            grad_commit=line.subject,
            units=commit.num_units,
            samples=commit.num_samples,
            parts=len(commit.parts),
        ),
        sealed=await _sealed(job, line.sealed, line.subject, work),
        anchored=await _anchored(job, line.sealed, work),
        audits=None if audits is None else await audits.load(job, commit, line, work),
        pay=await _pay_slip(job, line, work),
        claims=tuple(map(ClaimPartView.of, paid_parts(standing, claims))),
    )


async def _sealed(job: JobId, step: StepNumber, name: Digest, work: UnitOfWork) -> SealedView:
    """A message under the seal of a step.

    Raises:
        NotFound: the step is not sealed, or its seal holds no such message.
    """
    row = await work[SealRow].get(job, step)
    if row is None:
        raise NotFound("no such step is sealed", step=step)
    seal = seal_of(row).message
    messages = await _under(job, step, work)
    if messages_root(messages) != seal.messages_root:
        raise InvariantBroken(f"step {step}: the messages stored are not those of its seal")
    index, proof = prove_message(messages, name)
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


# ---------------------------------------------------------------------------------- under a seal


async def _under(job: JobId, step: StepNumber, work: UnitOfWork) -> list[Message]:
    """Messages 3 to 8 between the seal before and that of `step`."""
    first, last = await _sequence(job, step - 1, work), await _sequence(job, step, work)
    rows = await work[MessageRow].where(
        job=job, order="sequence", after=first, limit=min(last - first, MAX_UNDER_A_SEAL)
    )
    items = (decode_kept(row.data) for row in rows if row.kind in _KINDS)
    return [item.message for item in items if isinstance(item, Signed)]


_KINDS = frozenset(str(cls.model_fields["kind"].default) for cls in UNDER_A_SEAL)


async def _sequence(job: JobId, step: int, work: UnitOfWork) -> int:
    """Of the seal of a step; 0 before the first."""
    row = await work[SealRow].get(job, step) if step else None
    if row is None:
        return 0
    seal = seal_of(row)
    name = kept_digest(Signed[Message](seal.message, seal.signature))
    (found,) = await work[MessageRow].where(job=job, digest=name)
    return found.sequence


async def _commit(job: JobId, line: Line, work: UnitOfWork) -> GradCommit:
    kind = str(GradCommit.model_fields["kind"].default)
    found = await _named(job, (kind, job, line.step, line.peer, line.round), work)
    assert isinstance(found, GradCommit)  # as a seal holds it
    return found


async def _named(job: JobId, name: tuple[object, ...], work: UnitOfWork) -> Message:
    (row,) = await work[MessageRow].where(job=job, name=name_digest(name))
    item = decode_kept(row.data)
    assert isinstance(item, Signed)
    return item.message


# ----------------------------------------------------------------------------------------- audits


@dataclass(frozen=True)
class _Audits:
    """What a fold knows of a message's audits, taken before others go on with it."""

    view: AuditsView  # without the reports, which have to be read as they were signed
    reports: tuple[Report, ...]
    repeats: tuple["_Audits | None", ...]  # of each report; None: it is never drawn
    docket: Docket

    @classmethod
    def of(cls, found: Followed, line: Line) -> "_Audits | None":
        """The audits of a line's message; None if it is never drawn."""
        record, traces, subject = found.history.record, found.traces, line.subject
        if line.rate is None or record is None or not isinstance(record.checking, Docket):
            return None
        view = AuditsView(
            subject=subject,
            draw=_draw(found, line),
            rounds=tuple(
                RoundView.of(
                    each,
                    round=each.number,
                    drawn_in=each.drawn,
                    auditors=each.order,
                    first_attempt=each.first,
                )
                for each in traces.rounds.get(subject, ())
            ),
            reports=(),
            rulings=tuple(RulingView.of(each) for each in traces.rulings.get(subject, ())),
            outcome=found.tally.outcome_of(subject),
        )
        reports = tuple(traces.reports.get(subject, ()))
        lines = [found.earnings.of_subject.get(each.report) for each in reports]
        repeats = tuple(None if each is None else cls.of(found, each) for each in lines)
        return cls(view, reports, repeats, record.checking)

    async def load(
        self, job: JobId, commit: GradCommit, line: Line, work: UnitOfWork
    ) -> AuditsView:
        """With the reports as they were signed."""
        assert line.rate is not None  # as `of` has seen
        flops = Flops(self.docket.rules.spec.item_flops[commit.stage] * commit.num_units)
        return await self._load(peer_step(commit, flops, line.rate, {}).case, job, work)

    async def _load(self, case: Case, job: JobId, work: UnitOfWork) -> AuditsView:
        heard = []
        for report, repeat in zip(self.reports, self.repeats, strict=True):
            again = None
            if repeat is not None:
                said = Heard(report.auditor, report.verdict, report.report)
                beacon = next(r.beacon for r in self.view.rounds if r.round == report.round)
                seeded = repeat_of(replace(case, beacon=beacon), said, report.sealed)
                again = await repeat._load(seeded, job, work)
            distances = tuple(await self._distances(case, report, job, work))
            heard.append(ReportView.of(report, distances=distances, repeat=again))
        return self.view.model_copy(update={"reports": tuple(heard)})

    async def _distances(
        self, case: Case, report: Report, job: JobId, work: UnitOfWork
    ) -> Iterable[DistanceView]:
        kind = str(AuditReport.model_fields["kind"].default)
        said = (kind, report.auditor, self.view.subject, report.attempt)
        message = await _named(job, said, work)
        assert isinstance(message, AuditReport)
        allowed: dict[str, int] = {}
        if report.verdict != "missing":  # then nothing was compared
            allowed = limits_of(self.docket.rules, case, report.auditor, self.docket.classes)
        return (
            DistanceView(name=name, distance=distance, allowed=allowed.get(name))
            for name, distance in message.distances
        )


def _draw(found: Followed, line: Line) -> DrawView:
    """What decided whether a message is audited; drawn iff the PRF, as a fraction, is below q."""
    drawn = drawn_of(line, found)
    assert line.rate is not None and drawn is not None  # as the caller has seen
    name: Subject = Repeat(line.subject)
    if line.kind == "work":
        name = PeerStep(line.stage, line.peer, line.round)
    trace = found.traces.steps.get(line.sealed)
    beacon = None if trace is None else trace.beacon
    drawn_by = value = ordering = None
    if beacon is not None:
        ordering = ordering_beacon(beacon.job, beacon.of, beacon.beacon)
        # As the docket draws: without a batch that is served, everything of the step is.
        if beacon.batch != ZERO_DIGEST:
            drawn_by = step_beacon(beacon.job, beacon.of, beacon.beacon)
        if drawn_by is not None:
            value = Digest(prf(drawn_by, name.name()).to_bytes(32, "big"))
        if is_drawn(drawn_by, name, line.rate) != drawn.drawn:
            raise InvariantBroken(f"the draw of {line.subject.hex()} is not that of its beacon")
    return DrawView.of(
        drawn,
        name=name.name(),
        beacon=None if beacon is None else beacon_view(beacon),
        step_beacon=drawn_by,
        ordering_beacon=ordering,
        prf=value,
    )


# -------------------------------------------------------------------------------------------- pay


def _standing(found: Followed, step: StepNumber, peer: PeerId, number: int) -> Standings:
    for line in found.earnings.by_step.get(step, ()):
        if (line.kind, line.peer, line.round) == ("work", peer, number):
            standing = found.earnings.of_line(line)
            return standing._replace(line=replace(line))
    raise NotFound("no seal holds such work", step=step, peer=peer.hex(), round=number)


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
