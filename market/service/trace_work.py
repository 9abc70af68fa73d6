"""One peer-step from its GradCommit to the money: seal, anchor, coin, draw, audits, pay, epochs.

Each part is proved by the functions that coordinator, members, settlement and the offline audit
use; nothing is derived in another way, so a reader who folds the paths finds the same roots. The
caller is in a transaction.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from contracts.governance.pay import PayLeaf, prove_pay
from contracts.governance.settlement import AccountPay
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits, Flops
from contracts.terms.errors import InvariantBroken, NotFound
from contracts.terms.history import decode_kept, kept_digest, messages_root, prove_message
from contracts.terms.ids import ZERO_DIGEST, Digest, EpochNumber, JobId, PeerId, StepNumber
from contracts.terms.merkle import PayNode, Proof, SumNode, batch_leaf, plain_node
from contracts.terms.messages import UNDER_A_SEAL, AuditReport, GradCommit, Message, Seal, StepCoin
from contracts.terms.signatures import Signed
from market.domain.earnings import LineState, PartPaid, Parts, paid_parts, parts_of, state_of
from market.service.account_pay import claim_transaction, claims_of, epoch_sums, paid_epochs
from market.service.coding import decode_pay, name_digest, seal_of
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, JobRow, MessageRow, SealRow
from market.service.seals_on_chain import seals_on_chain
from market.service.settle_epoch import load_settlement
from market.service.show_earnings import Drawing, drawing_of
from verification.docket import Docket
from verification.draws import drawables
from verification.draws.cases import Case, Heard, Ruling, repeat_of
from verification.draws.coin import ordering_coin, step_coin
from verification.draws.selection import PeerStep, Repeat, Subject, is_drawn, prf
from verification.earnings import Line, Standings
from verification.tallies import Outcome
from verification.traces import Report, Round
from verification.verdicts import limits_of

MAX_UNDER_A_SEAL = 50_000


@dataclass(frozen=True)
class SealedMessage:
    """A message under a seal, and its path to the seal's `messages_root`."""

    seal: Seal
    digest: Digest  # of the seal
    index: int
    proof: Proof[Digest]


@dataclass(frozen=True)
class AnchoredSeal:
    """A seal's leaf in the batch that holds it, and its path to the batch's root."""

    batch: BatchRow
    index: int
    leaf: Digest
    proof: Proof[Digest]


@dataclass(frozen=True)
class Draw:
    """What decided whether a message is audited: drawn iff the PRF, as a fraction, is below q."""

    name: bytes  # that the PRF is taken of
    rate: Fraction
    coin: StepCoin | None  # as a seal says it; None: it is not here yet
    step_coin: Digest | None  # B; None: not here, or it came too late and draws all
    ordering: Digest | None  # what orders auditors; B, but where that came too late
    prf: int | None
    drawing: Drawing


@dataclass(frozen=True)
class HeardReport:
    """A report that counts, as it was signed, beside what each of its distances may be."""

    report: Report
    message: AuditReport
    limits: tuple[tuple[str, int], ...]
    repeat: "Audits | None"  # of a report that may be repeated outside


@dataclass(frozen=True)
class Audits:
    """The way of one message through its audits."""

    subject: Digest
    draw: Draw
    rounds: tuple[Round, ...]
    reports: tuple[HeardReport, ...]
    rulings: tuple[Ruling, ...]
    outcome: Outcome | None


@dataclass(frozen=True)
class PaySlip:
    """The leaf of an account in the pay tree of the seal that vested a line."""

    step: StepNumber
    seal: Digest
    root: Digest
    leaf: PayLeaf
    index: int
    proof: Proof[PayNode]
    anchor: AnchoredSeal | None


@dataclass(frozen=True)
class EpochSlip:
    """A line's part in an epoch: job's leaf in the account's tree, account's leaf in the root."""

    part: PartPaid
    account: AccountPay
    cumulative: BaseUnits  # of the job
    job_proof: Proof[SumNode]
    account_proof: Proof[SumNode]
    root_sum: BaseUnits
    claimed_by: Digest | None


@dataclass(frozen=True)
class WorkTrace:
    """All of it."""

    standing: Standings
    parts: Parts
    state: LineState
    commit: GradCommit
    sealed: SealedMessage
    anchor: AnchoredSeal | None
    audits: Audits | None  # None: it is never drawn
    pay: PaySlip | None  # None: nothing of it has vested
    epochs: tuple[EpochSlip, ...]


async def trace_work(
    job: JobId,
    step: StepNumber,
    peer: PeerId,
    number: int,
    *,
    work: UnitOfWork,
    followed: FollowedJobs,
) -> WorkTrace:
    """The trace of what `peer` did in round `number` of a sealed step.

    Raises:
        NotFound: no such job, or no such peer-step in any seal.
    """
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    found = await followed.load(job, row.num_messages, work)
    standing = _standing(found, step, peer, number)
    audits = _Audits.of(found, standing.line)  # before anything else is waited for
    line = standing.line
    commit = await _commit(job, line, work)
    paid = paid_parts(standing, await paid_epochs(job, line.account, work))
    parts = parts_of(standing, paid)
    vesting = None if line.resolved is None or line.lost_by else line.resolved
    return WorkTrace(
        standing=standing,
        parts=parts,
        state=state_of(standing, parts),
        commit=commit,
        sealed=await sealed_message(job, line.sealed, line.subject, work),
        anchor=await anchored_seal(job, line.sealed, work),
        audits=None if audits is None else await audits.load(job, commit, work),
        pay=None if vesting is None else await _pay_slip(job, vesting, line, work),
        epochs=tuple(
            [
                await _epoch_slip(job, each, line, work)
                for each in paid
                if each.epoch.state != "planned"
            ]
        ),
    )


async def sealed_message(
    job: JobId, step: StepNumber, name: Digest, work: UnitOfWork
) -> SealedMessage:
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
    return SealedMessage(seal, row.digest, index, proof)


async def anchored_seal(job: JobId, step: StepNumber, work: UnitOfWork) -> AnchoredSeal | None:
    """A seal in its batch; None while none on chain holds it."""
    _, batch = (await seals_on_chain(job, [step], work)).get(step, (None, None))
    if batch is None:
        return None
    rows = await work[BatchEntryRow].where(root=batch.root)
    entries = sorted((each.job, each.step, each.seal) for each in rows)
    index = next(i for i, (of, at, _) in enumerate(entries) if (of, at) == (job, step))
    leaves = [batch_leaf(*entry) for entry in entries]
    return AnchoredSeal(batch, index, leaves[index], merkle.prove(leaves, index, plain_node))


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

    subject: Digest
    doer: PeerId
    draw: Draw
    rounds: tuple[Round, ...]
    reports: tuple[Report, ...]
    rulings: tuple[Ruling, ...]
    outcome: Outcome | None
    docket: Docket
    repeats: tuple["_Audits | None", ...]

    @classmethod
    def of(cls, found: Followed, line: Line) -> "_Audits | None":
        """The audits of a line's message; None if it is never drawn."""
        record, traces = found.history.record, found.traces
        if line.rate is None or record is None or not isinstance(record.checking, Docket):
            return None
        reports = tuple(traces.reports.get(line.subject, ()))
        lines = [found.earnings.of_subject.get(each.report) for each in reports]
        return cls(
            line.subject,
            line.peer,
            _draw(found, line),
            tuple(traces.rounds.get(line.subject, ())),
            reports,
            tuple(traces.rulings.get(line.subject, ())),
            found.tally.outcome_of(line.subject),
            record.checking,
            tuple(None if each is None else cls.of(found, each) for each in lines),
        )

    async def load(self, job: JobId, commit: GradCommit, work: UnitOfWork) -> Audits:
        """With the reports as they were signed."""
        flops = Flops(self.docket.rules.spec.unit_flops[commit.stage] * commit.num_units)
        case = drawables.peer_step(commit, flops, self.draw.rate, {}).case
        return await self._load(job, case, work)

    async def _load(self, job: JobId, case: Case, work: UnitOfWork) -> Audits:
        heard = []
        for report, repeat in zip(self.reports, self.repeats, strict=True):
            kind = str(AuditReport.model_fields["kind"].default)
            name = (kind, report.auditor, self.subject, report.attempt)
            message = await _named(job, name, work)
            assert isinstance(message, AuditReport)
            limits = self._limits(case, report)
            again = None
            if repeat is not None:
                said = Heard(report.auditor, report.verdict, report.report)
                coin = next(r.coin for r in self.rounds if r.number == report.round)
                seeded = replace(case, coin=coin)
                again = await repeat._load(job, repeat_of(seeded, said, report.sealed), work)
            heard.append(HeardReport(report, message, tuple(sorted(limits.items())), again))
        return Audits(
            self.subject, self.draw, self.rounds, tuple(heard), self.rulings, self.outcome
        )

    def _limits(self, case: Case, report: Report) -> dict[str, int]:
        if report.verdict == "missing":
            return {}  # nothing was compared
        return limits_of(self.docket.rules, case, report.auditor, self.docket.classes)


def _draw(found: Followed, line: Line) -> Draw:
    assert line.rate is not None  # as the caller has seen
    name: Subject = Repeat(line.subject)
    if line.kind == "work":
        name = PeerStep(line.stage, line.peer, line.round)
    trace = found.traces.steps.get(line.sealed)
    coin = None if trace is None else trace.coin
    drawing = drawing_of(line, found)
    if coin is None:
        return Draw(name.name(), line.rate, None, None, None, None, drawing)
    # As the docket draws: without a batch that is served, everything of the step is.
    drawn_by = None
    if coin.batch != ZERO_DIGEST:
        drawn_by = step_coin(coin.job, coin.of, coin.coin)
    ordering = ordering_coin(coin.job, coin.of, coin.coin)
    if is_drawn(drawn_by, name, line.rate) != drawing.is_drawn:
        raise InvariantBroken(f"the draw of {line.subject.hex()} is not that of its coin")
    value = None if drawn_by is None else prf(drawn_by, name.name())
    return Draw(name.name(), line.rate, coin, drawn_by, ordering, value, drawing)


# -------------------------------------------------------------------------------------------- pay


def _standing(found: Followed, step: StepNumber, peer: PeerId, number: int) -> Standings:
    for line in found.earnings.by_step.get(step, ()):
        if (line.kind, line.peer, line.round) == ("work", peer, number):
            standing = found.earnings.of_line(line)
            return standing._replace(line=replace(line))
    raise NotFound("no seal holds such work", step=step, peer=peer.hex(), round=number)


async def _pay_slip(job: JobId, step: StepNumber, line: Line, work: UnitOfWork) -> PaySlip | None:
    row = await work[SealRow].get(job, step)
    assert row is not None  # it has vested the line
    leaves = decode_pay(row.pay)
    if all(leaf.account != line.account for leaf in leaves):
        return None  # not worth a base unit so far
    leaf, proof = prove_pay(leaves, line.account)
    index = leaves.index(leaf)
    root = seal_of(row).message.pay_root
    anchor = await anchored_seal(job, step, work)
    return PaySlip(step, row.digest, root, leaf, index, proof, anchor)


async def _epoch_slip(job: JobId, part: PartPaid, line: Line, work: UnitOfWork) -> EpochSlip:
    settlement = await load_settlement(work, part.epoch.epoch)
    account, account_proof = settlement.claim_proof(line.account)
    cumulative, job_proof = settlement.job_proof(line.account, job)
    return EpochSlip(
        part, account, cumulative, job_proof, account_proof, settlement.root.sum,
        await _claimed_by(line, part.epoch.epoch, work) if part.epoch.is_claimed else None,
    )  # fmt: skip


async def _claimed_by(line: Line, epoch: EpochNumber, work: UnitOfWork) -> Digest | None:
    granted = (await epoch_sums(line.account, [epoch], work))[epoch]
    event = (await claims_of(line.account, work)).reached(granted)
    return None if event is None else await claim_transaction(event, work)
