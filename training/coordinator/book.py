"""Everything a coordinator knows, as the fold of its journal; nothing is told before it is stored.

One `record` is one transaction: the event, the peer's messages that it is about, and the messages
that the coordinator binds itself to in consequence. So after a crash at any point either the event
has not happened, or its consequences are on disk with their signatures, and are sent again as they
are: never a second value under one name.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from contracts.governance.checking import Begin, unread
from contracts.governance.job import JobHistory, SealedStep, follow
from contracts.governance.limits import PayHistory, lag_of
from contracts.governance.record import JobRecord
from contracts.governance.seals import UnderSeal, derive_seal
from contracts.governance.vesting import forfeited_by
from contracts.keys.wallet import Session, Wallet
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Conflict, Equivocation, InvariantBroken, Misbehaved, Refused
from contracts.terms.history import Kept, Leaves, decode_kept, encode_kept
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    Digest,
    PeerId,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.messages import (
    AuditReport,
    AverageSet,
    GradCommit,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Seal,
    StepClose,
)
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.changes import Changes
from training.coordinator.draws import next_event
from training.coordinator.ports import StepReport, decode_report
from training.journal import Journal, Row
from training.swarm import events
from training.swarm.journaled import decode_event, encode_event
from training.swarm.state import Sealing, SwarmState, terms_of
from training.swarm.step import advance, is_last_step
from training.telling import Tell
from training.transport import calls
from training.worker.sealed import SealedWork

EVENT, KEPT, REPORT = "event", "kept", "report"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Opening:
    """What a JobOpening says beside the job and the coordinator's key."""

    anchorer: Address
    opening_block: int
    auditors: AuditorList | None = None  # outside of the job; None while checking is off


@dataclass(frozen=True)
class Signer:
    """The coordinator's two keys, and where its wallet's signatures hold."""

    wallet: Wallet
    session: Session
    domain: Domain


class Book:
    """State and history of one job, and the only way to change them."""

    def __init__(
        self,
        journal: Journal,
        spec: Signed[JobSpec],
        opening: Opening,
        signer: Signer,
        tell: Tell,
        begin: Begin = unread,
    ) -> None:
        """Read the journal, or begin it with the job's opening.

        Raises:
            Conflict: the journal is of another job, or was opened with another session key.
        """
        self.changes = Changes()
        self.failure: InvariantBroken | None = None
        self.state = SwarmState(terms_of(spec.message))
        self.history = JobHistory(signer.domain, begin)
        self._journal, self._signer, self._tell = journal, signer, tell
        self._ends: dict[StepNumber, int] = {}  # row of each step's seal; of the opening for 0
        self._began_at: UnixMillis | None = None  # when the first step could begin
        self._newest_report: StepReport | None = None
        self._stages: dict[PeerId, StageIndex] = {}  # of everybody who ever joined
        self._reports: dict[object, Digest] = {}  # AuditReports, sealed or not, by their names
        self.sealed_work = SealedWork()
        self.pay = PayHistory(lag_of(spec.message))
        """Of all accounts, by the newest seals."""
        self.pay.add((), {})
        self._paid: SealedStep | None = None  # the newest seal that is in it
        if not len(journal):
            listed = [_kept(opening.auditors)] if opening.auditors else []
            opened = _kept(_opening_of(spec.message, opening, signer))
            self._store([_kept(spec), opened, *listed])
        self._read(spec)

    def _read(self, spec: Signed[JobSpec]) -> None:
        for row in self._journal.rows():
            match row.kind:
                case "kept":
                    item = decode_kept(row.data)
                    self._note_sealed([item])
                    self.history = follow(self.history, item)
                    self._note_pay()
                    self._note_kept(item, row.sequence)
                case "event":
                    self._fold(decode_event(row.data))
                case "report":
                    self._newest_report = decode_report(row.data)
        same_key = self.record_of_job.opening.session_key == self._signer.session.key
        if self.record_of_job.job != spec.message.job() or not same_key:
            raise Conflict("this folder is of another job, or its session key was replaced")

    def _fold(self, event: events.Event) -> None:
        self.state, _ = advance(self.state, event)
        self._note_join_and_start(self.state, event)

    def _note_join_and_start(self, state: SwarmState, event: events.Event) -> None:
        if isinstance(event, events.PeerJoined):
            self._stages[event.peer] = event.stage
        if state.started and self._began_at is None:
            self._began_at = event.at

    def _note_sealed(self, items: Iterable[Kept]) -> None:
        """Before a seal enters the history: keep of a checked job what audits may ask for."""
        is_seal = any(isinstance(each, Signed) and isinstance(each.message, Seal) for each in items)
        if is_seal and self.record_of_job.spec.rules.audit is not None:
            oldest = self.record_of_job.checking.oldest_needed
            self.sealed_work.forget_before(self.state.step if oldest is None else oldest)
            self.sealed_work.note(self.history)

    def _note_pay(self) -> None:
        """Of a seal that has just entered the history, if one has."""
        if (newest := self.history.newest) is not self._paid and newest is not None:
            record, self._paid = self.record_of_job, newest
            self.pay.add(newest.pay, forfeited_by(record.pay, record.pay_leases()))

    def _note_kept(self, item: Kept, sequence: int) -> None:
        match item:
            case Signed(message=Seal(step=step)):
                self._ends[step] = sequence
            case Signed(message=JobOpening()) | AuditorList():
                self._ends[StepNumber(0)] = sequence
            case Signed(message=AuditReport() as report):
                self._reports[report.stated_name()] = report.digest()

    # -------------------------------------------------------------------------- what is known

    @property
    def record_of_job(self) -> JobRecord:
        """What the seals have established."""
        assert self.history.record is not None  # from the opening on, which begins every journal
        return self.history.record

    @property
    def journal(self) -> Journal:
        """The rows, for whoever posts them."""
        return self._journal

    def key_of(self, peer: PeerId) -> SessionKey:
        """Session key of a peer with a lease."""
        return self.record_of_job.leases[peer].session_key

    def member_views(self) -> tuple[calls.MemberView, ...]:
        """What others need to know to reach and trust the members."""
        members = sorted(self.state.members.values(), key=lambda member: member.peer)
        return tuple(
            calls.MemberView(
                session_key=self.key_of(each.peer), stage=each.stage, address=each.address
            )
            for each in members
        )

    def stage_before(self, peer: PeerId) -> StageIndex | None:
        """Stage of a peer that was here before and left: it has that state on its disk."""
        return self._stages.get(peer)

    def pending(self, kind: type[M]) -> tuple[Signed[M], ...]:
        """Messages of one kind that no seal holds yet, in the order they were recorded."""
        return tuple(
            Signed(signed.message, signed.signature)
            for signed in self.history.pending.values()
            if isinstance(signed.message, kind)
        )

    def has_recorded(self, report: AuditReport) -> bool:
        """Whether a report is in the history, sealed or not: it may stand there once.

        Raises:
            Equivocation: another one of the same draw is.
        """
        known = self._reports.get(report.stated_name())
        if known not in (None, report.digest()):
            raise Equivocation("another report on the same draw is known")
        return known is not None

    def take_report(self, signed: Signed[AuditReport], at: UnixMillis) -> None:
        """Take the report of an audit that was drawn, once.

        Raises:
            Conflict: nobody asks for it (any more), or it does not follow from its distances.
            BadSignature, Equivocation: see `record` and `has_recorded`.
        """
        if self.has_recorded(signed.message):
            return
        if not self.record_of_job.checking.wants(signed.message):
            raise Conflict("this report is not wanted")
        self.record(events.SealWanted(at), Signed[Message](signed.message, signed.signature))

    def unsealed(self) -> tuple[Message, ...]:
        """All messages that no seal holds yet, in the order they were recorded."""
        return tuple(signed.message for signed in self.history.pending.values())

    def sign(self, message: M) -> Signed[M]:
        """A message of ours, signed with the session key; it binds once it is recorded."""
        return self._signer.session.sign(message)

    def signed_close(self) -> Signed[StepClose]:
        """The newest StepClose of this step."""
        return self.pending(StepClose)[-1]

    def signed_average(self) -> Signed[AverageSet]:
        """The AverageSet of this step."""
        return self.pending(AverageSet)[-1]

    def signed_commits(self, names: Iterable[Digest]) -> tuple[Signed[GradCommit], ...]:
        """GradCommits of this step with these digests."""
        wanted = set(names)
        return tuple(each for each in self.pending(GradCommit) if each.message.digest() in wanted)

    def items_of(self, step: StepNumber) -> list[bytes]:
        """Everything kept after the seal before up to the seal of `step`, encoded, in order."""
        start, end = self._ends[StepNumber(step - 1)], self._ends[step]
        items = []
        for row in self._journal.rows(after=start):
            if row.sequence > end:
                break
            if row.kind == KEPT:
                items.append(row.data)
        return items

    # ------------------------------------------------------------------------- what is changed

    def record(self, event: events.Event, *kept: Kept) -> bool:
        """Take an event with the messages it is about; False, and nothing is kept, if it is moot.

        Raises:
            BadSignature, Malformed, Conflict, Equivocation: `kept` has no place in the history.
            Unavailable: the journal cannot be written; nothing has changed.
        """
        if not self._take(event, kept):
            return False
        self.go_on(event.at)
        return True

    def go_on(self, at: UnixMillis) -> None:
        """Store the seals that are due, and what draws ask for; errors as `seal`."""
        while True:
            if isinstance(self.state.phase, Sealing):
                self.seal(at)
            elif (event := next_event(self.state, self.record_of_job, self.unsealed(), at)) is None:
                return
            elif not self._take(event):
                raise InvariantBroken(f"step {self.state.step}: {event} changes nothing")

    def seal(self, at: UnixMillis) -> None:
        """Derive, sign and store the seal that is due.

        Raises:
            InvariantBroken: none follows from what was recorded; `failure` says so from then on.
            Unavailable: the journal cannot be written; the seal stays due.
        """
        try:
            self._seal(at)
        except (Refused, Misbehaved) as error:
            # Whatever leads here was let in by `acceptance` or by the state machine: our bug.
            self.failure = InvariantBroken(f"step {self.state.step}: {error.message}")
            self.changes.mark()
            raise self.failure from error

    def _seal(self, at: UnixMillis) -> None:
        last, step = is_last_step(self.state), self.state.step
        under = UnderSeal(tuple(self.history.pending.values()), self.history.leaves)
        derived = derive_seal(self.record_of_job, under, last=last)
        report = self._report(step, at)
        signed = self._signer.wallet.sign(derived.seal, self._signer.domain)
        seal = Signed[Message](signed.message, signed.signature)
        if not self._take(events.SealStored(step, last, at), (seal,), report):
            raise InvariantBroken(f"step {step} was not waiting for its seal")

    @property
    def newest_report(self) -> StepReport | None:
        """Of the newest step with an update."""
        return self._newest_report

    def note_validation(self, step: StepNumber, loss: int) -> None:
        """Keep the loss on validation rows after `step` (1e-6), once; not if that is long ago."""
        report = self._newest_report
        if report is None or report.step != step or report.validation_millionths is not None:
            return
        self._newest_report = replace(report, validation_millionths=loss)
        self._store([Row(REPORT, self._newest_report.encoded())])
        self._tell("validated", step=step, loss=loss)
        self.changes.mark()

    def _take(
        self, event: events.Event, kept: Iterable[Kept] = (), report: StepReport | None = None
    ) -> bool:
        state, effects = advance(self.state, event)
        if not effects and replace(state, at=self.state.at) == self.state:
            return False
        items = [*kept, *self._signed(effects)]
        history = self.history
        for item in items:
            history = follow(history, item)
        rows = [Row(EVENT, encode_event(event)), *map(_kept, items)]
        self._store([*rows, Row(REPORT, report.encoded())] if report else rows)
        self._tell_of(event, effects, items, report)
        self._newest_report = report or self._newest_report
        self._note_join_and_start(state, event)
        self._note_sealed(items)
        self.state, self.history = state, history
        self._note_pay()
        self.changes.mark()
        return True

    def _store(self, rows: list[Row]) -> None:
        first = len(self._journal) + 1
        self._journal.append(rows)
        for sequence, row in enumerate(rows, start=first):
            if row.kind == KEPT:
                self._note_kept(decode_kept(row.data), sequence)

    def _signed(self, effects: Iterable[events.Effect]) -> Iterator[Signed[Message]]:
        for effect in effects:
            match effect:
                case (
                    events.SendNotice(message)
                    | events.SendStepClose(message)
                    | events.SendAverageSet(message)
                ):
                    signed = self._signer.session.sign(message)
                    yield Signed(signed.message, signed.signature)
                case events.KeepChunks(chunks):
                    yield from (Signed[Message](*signed) for signed in chunks)

    def _report(self, step: StepNumber, at: UnixMillis) -> StepReport | None:
        if not (isinstance(self.state.phase, Sealing) and self.state.phase.has_update):
            return None  # nothing was learnt
        batch, model = self.record_of_job.spec.batch, self.record_of_job.spec.model
        losses = self._losses(StageIndex(batch.stages - 1))
        tokens = len(losses) * batch.rows_per_unit * model.sequence_length
        since = self._newest_report.at if self._newest_report else self._began_at
        speed = tokens * 1000 // max(1, at - since) if since is not None else 0
        mean = (2 * sum(losses) + len(losses)) // (2 * len(losses))  # halves up
        return StepReport(step, mean, speed, at)

    def _losses(self, last_stage: StageIndex) -> list[int]:
        counted = {m.grad_commit for each in self.pending(AverageSet) for m in each.message.members}
        commits = (each.message for each in self.pending(GradCommit))
        names = [c.digest() for c in commits if c.stage == last_stage and c.digest() in counted]
        leaves = (leaf for name in names for leaf in self.history.leaves[name])
        return [leaf.loss for leaf in leaves if leaf.loss is not None]

    def _tell_of(
        self,
        event: events.Event,
        effects: Iterable[events.Effect],
        items: Iterable[Kept],
        report: StepReport | None,
    ) -> None:
        step = self.state.step
        _tell_event(self._tell, step, event)
        for item in items:
            match item:
                case Signed(message=StepClose(revision=revision)):
                    self._tell("step_closed", step=step, revision=revision)
                case Signed(message=AverageSet(members=members)):
                    self._tell("average_set_stored", step=step, members=len(members))
                case Signed(message=AuditReport() as said):
                    about = {"peer": said.auditor, "subject": said.subject}
                    self._tell("report_taken", step=step, **about, report=said.digest())
                case Signed(message=Seal() as seal):
                    self._tell(
                        "seal_stored",
                        step=step,
                        seal=seal.digest(),
                        loss=report.loss_millionths if report else None,
                        gradient_norm=seal.gradient_norm,
                        last=seal.last,
                        all_members=len(self.state.members),
                    )
        for effect in effects:
            match effect:
                case events.Redo(places):
                    self._tell("redo", step=step, units=len(places))
                case events.EndedWithoutUpdate():
                    self._tell("ended_without_update", step=step)
                case events.PauseJob():
                    self._tell("paused", step=step)


def _tell_event(tell: Tell, step: StepNumber, event: events.Event) -> None:
    match event:
        case events.PeerJoined(peer=peer, stage=stage, rate=rate):
            tell("peer_joined", step=step, peer=peer, stage=stage, rate=rate)
        case events.PeerReturned(peer=peer, applied=applied):
            tell("peer_returned", step=step, peer=peer, applied=applied)
        case events.PeerLost(peer=peer):
            tell("peer_lost", step=step, peer=peer)
        case events.GradCommitted(commit=commit, units=units):
            about = {"peer": commit.peer, "stage": commit.stage, "round": commit.round}
            tell("grad_commit_stored", step=step, **about, units=len(units))
        case events.PeerLeaving(peer=peer):
            tell("peer_leaving", step=step, peer=peer)
        case events.UnitsLost(units=units):
            tell("units_lost", step=step, units=len(units))
        case events.LinkBroken(peer=peer):
            tell("link_broken", step=step, peer=peer)
        case events.PartsDenied(peer=peer):
            tell("parts_denied", step=step, peer=peer)
        case events.UnitsDone(copies=copies):
            tell("units_taken", step=step, units=len({unit for (_, unit), _ in copies}))
        case events.PartsHeld(peer=peer, parts=parts):
            tell("parts_held", step=step, peer=peer, parts=len(parts))
        case events.ChunkAveraged(chunk=chunk):
            about = {"peer": chunk.peer, "stage": chunk.stage, "chunk": chunk.chunk}
            tell("chunk_stored", step=step, **about)
        case events.MeansKept(chunks=chunks):
            tell("means_kept", step=step, chunks=len(chunks))
        case events.MeansWithheld(peer=peer, chunks=chunks):
            tell("means_withheld", step=step, peer=peer, chunks=len(chunks))
        case events.SealApplied(peer=peer, step=applied):
            tell("seal_applied", step=applied, peer=peer)


def _kept(item: Kept | Signed[JobSpec] | Signed[LeaseAccept]) -> Row:
    if isinstance(item, Leaves | AuditorList):
        return Row(KEPT, encode_kept(item))
    return Row(KEPT, encode_kept(Signed(item.message, item.signature)))


def _opening_of(spec: JobSpec, opening: Opening, signer: Signer) -> Signed[Message]:
    message = JobOpening(
        job=spec.job(),
        job_spec=spec.digest(),
        session_key=signer.session.key,
        anchorer=opening.anchorer,
        opening_block=opening.opening_block,
        outside_auditors=opening.auditors.digest() if opening.auditors else ZERO_DIGEST,
    )
    signed = signer.wallet.sign(message, signer.domain)
    return Signed(signed.message, signed.signature)
