"""Everything a coordinator knows, as the fold of its journal; nothing is told before it is stored.

One `record` is one transaction: events, the peers' messages that they are about, and the messages
that the coordinator binds itself to in consequence. So after a crash at any point either an event
has not happened, or its consequences are on disk with their signatures, and are sent again as they
are: never a second value under one name. What else the round machine asks for goes to `on_effect`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeAlias, TypeVar

from contracts.governance.checking import Begin, Reported, unread
from contracts.governance.job import JobHistory, SealedStep, follow
from contracts.governance.limits import PayHistory, lag_of
from contracts.governance.record import JobRecord
from contracts.governance.seals import UnderSeal, derive_seal
from contracts.governance.vesting import forfeited_by
from contracts.keys.wallet import Session, Wallet
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import (
    Conflict,
    Equivocation,
    InvariantBroken,
    Misbehaved,
    Refused,
)
from contracts.terms.history import Kept, Leaves, decode_kept, encode_kept, kept_name
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, PeerId, SessionKey, StepNumber
from contracts.terms.messages import JobOpening, JobSpec, Message, Seal, Validation
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.targets import TargetCounts, item_weights
from contracts.terms.typed_data import Domain
from contracts.terms.work import Leaf, RoundClosed, WorkClaim, findings_of
from training.changes import Changes
from training.coordinator.draws import checked_now, next_event
from training.coordinator.ports import StepReport, decode_report
from training.journal import Journal, Row
from training.rounds import events
from training.rounds.journaled import decode_event, encode_event
from training.rounds.machine import advance
from training.rounds.sealing import is_last_round
from training.rounds.state import (
    Commit,
    OpenRound,
    Reduce,
    RoundState,
    Terms,
    Work,
    first_state,
)
from training.rounds.state import Seal as SealPhase
from training.strategies.port import Group, PureStrategy, RoundNumber
from training.telling import Tell
from training.transport import calls
from training.worker.sealed import SealedWork

EVENT, KEPT, REPORT = "event", "kept", "report"
REMEMBERED_ROUNDS = 3
M = TypeVar("M", bound=Message)

MAX_LOSS = 2**53 - 1
"""That a message holds, 1e-6 nats per token."""
ROUND_MS = 600_000
"""Until nothing new is begun in a round: a safety valve, not a pace."""
HOLD_MS = 5000
"""That a seal waits for members that do not hold its buckets yet, at most."""
GATHER = 1e-3
"""Seconds that an event waits for others, so that one write, of some milliseconds, stores them."""

Happened: TypeAlias = tuple[events.Event, Sequence[Kept]]
"""An event, and the messages that it is about."""


@dataclass(frozen=True)
class Opening:
    """What a JobOpening says beside the job and the coordinator's key."""

    anchorer: Address
    opening_block: int
    auditors: AuditorList | None = None  # outside of the job; None while checking is off
    targets: TargetCounts | None = None  # that the JobSpec names; None in pretraining


@dataclass(frozen=True)
class Signer:
    """The coordinator's two keys, and where its wallet's signatures hold."""

    wallet: Wallet
    session: Session
    domain: Domain


def terms_of(spec: JobSpec, rules: PureStrategy, targets: TargetCounts | None) -> Terms:
    """What the machine goes by, of a signed job; raises Conflict: other targets than it names."""
    return Terms(
        job=spec.job(),
        layout=rules.layout(spec),
        weights=item_weights(spec, targets),
        peers_per_group=spec.batch.peers_per_stage,
        round_ms=spec.batch.round_time or max(ROUND_MS, 10 * spec.rules.commit_timeout),
        commit_ms=spec.rules.commit_timeout,
        deliver_ms=spec.rules.exchange_timeout,
        reduce_ms=spec.rules.exchange_timeout,
        hold_ms=min(HOLD_MS, spec.rules.exchange_timeout),
        redo_after=spec.rules.redo_after,
        lease_grace=spec.rules.lease_grace,
        is_checked=spec.rules.audit is not None,
    )


class JobJournal:
    """State and history of one job, and the only way to change them."""

    def __init__(
        self,
        file: Journal,
        spec: Signed[JobSpec],
        opening: Opening,
        signer: Signer,
        rules: PureStrategy,
        tell: Tell,
        begin: Begin = unread,
    ) -> None:
        """Read the journal, or begin it with the job's opening.

        Raises:
            Conflict: the journal is of another job, or was opened with another session key.
        """
        self.changes = Changes()
        self.exchanged = Changes()  # of what members exchange: claims, RoundClosed, who reduces
        self.failure: InvariantBroken | None = None
        self.rules = rules
        self.state = first_state(terms_of(spec.message, rules, opening.targets))
        self.history = JobHistory(signer.domain, begin)
        self.on_effect: Callable[[events.Effect], None] = lambda _effect: None
        self.may_work: Callable[[], frozenset[PeerId] | None] = lambda: None
        """Who may work by limits and bonds; None: everybody. Set before anything is recorded."""
        self.file, self._signer, self._tell = file, signer, tell
        self._ends: dict[int, int] = {}  # row of each round's seal; of the opening for 0
        self._items: dict[int, tuple[tuple[Digest, bytes], ...]] = {}  # of few rounds
        self._began_at: UnixMillis | None = None  # when the first round could begin
        self.newest_report: StepReport | None = None
        """Of the newest round with an update."""
        self._groups: dict[PeerId, Group] = {}  # of everybody who ever joined
        self._reports: dict[object, Digest] = {}  # claims of reports, sealed or not, by names
        self.sealed_work = SealedWork()
        self.pay = PayHistory(lag_of(spec.message))
        """Of all accounts, by the newest seals."""
        self.pay.add((), {})
        self._paid: SealedStep | None = None  # the newest seal that is in it
        self._views: tuple[object, object, tuple[calls.MemberView, ...]] = (None, None, ())
        self._gathered: list[events.Event] = []
        self._stored: asyncio.Future[None] | None = None  # once they are
        if not len(file):
            beside = [each for each in (opening.auditors, opening.targets) if each]
            self._store([spec, _opening_of(spec.message, opening, signer), *beside])
        self._read(spec)

    def _read(self, spec: Signed[JobSpec]) -> None:
        for row in self.file.rows():
            match row.kind:
                case "kept":
                    item, before = decode_kept(row.data), self.history
                    self.history = follow(self.history, item)
                    self._note_seal(before)
                    self._note_kept(item, row.sequence)
                case "event":
                    event = decode_event(row.data)
                    self.state, _ = advance(self.state, event, self.rules)
                    self._note_join_and_start(self.state, event)
                case "report":
                    self.newest_report = decode_report(row.data)
        same_key = self.record_of_job.opening.session_key == self._signer.session.key
        if self.record_of_job.job != spec.message.job() or not same_key:
            raise Conflict("this folder is of another job, or its session key was replaced")

    def _note_join_and_start(self, state: RoundState, event: events.Event) -> None:
        if isinstance(event, events.Joined):
            self._groups[event.peer] = event.group
        if state.started and self._began_at is None:
            self._began_at = event.at

    def _note_seal(self, under: JobHistory) -> None:
        """If a seal has just entered the history: what it pays, and what audits may ask for."""
        newest = self.history.newest
        if newest is None or newest is self._paid:
            return
        record, self._paid = self.record_of_job, newest
        self.pay.add(newest.pay, forfeited_by(record.pay, record.pay_leases()))
        if record.spec.rules.audit is not None:
            oldest = record.checking.oldest_needed
            self.sealed_work.forget_before(record.step if oldest is None else oldest)
            self.sealed_work.note(under, newest.names)

    def _note_kept(self, item: Kept, sequence: int) -> None:
        match item:
            case Signed(message=Seal(step=step)):
                self._ends[step] = sequence
            case Signed(message=JobOpening()) | AuditorList():
                self._ends[0] = sequence
            case Signed(message=WorkClaim(what="report") as report):
                self._reports[report.stated_name()] = report.digest()

    # -------------------------------------------------------------------------- what is known

    @property
    def record_of_job(self) -> JobRecord:
        """What the seals have established."""
        assert self.history.record is not None  # from the opening on, which begins every journal
        return self.history.record

    def key_of(self, peer: PeerId) -> SessionKey:
        """Session key of a peer with a lease."""
        return self.record_of_job.leases[peer].session_key

    def member_views(self) -> tuple[calls.MemberView, ...]:
        """What others need to know to reach and trust the members; the same while they are."""
        members, (known, before, views) = self.state.members, self._views
        if members is not known:
            named = sorted((each.peer, each.group, each.address) for each in members.values())
            if named != before:
                views = tuple(
                    calls.MemberView(session_key=self.key_of(peer), group=group, address=address)
                    for peer, group, address in named
                )
            self._views = members, named, views
        return views

    def group_before(self, peer: PeerId) -> Group | None:
        """Group of a peer that was here before and left: it has that state on its disk."""
        return self._groups.get(peer)

    def pending(self, kind: type[M]) -> tuple[Signed[M], ...]:
        """Messages of one kind that no seal holds yet, in the order they were recorded."""
        return tuple(
            Signed(signed.message, signed.signature)
            for signed in self.history.pending.values()
            if isinstance(signed.message, kind)
        )

    def reports_named(self) -> frozenset[Digest]:
        """Claims of reports that a claim of work may name."""
        pending = (each.message for each in self.pending(WorkClaim))
        held = {each.digest() for each in pending if each.what == "report"}
        return self.record_of_job.reported | held

    def has_recorded(self, report: WorkClaim) -> bool:
        """Whether a report is in the history, sealed or not: it may stand there once.

        Raises:
            Equivocation: another one of the same draw is.
        """
        known = self._reports.get(report.stated_name())
        if known not in (None, report.digest()):
            raise Equivocation("another report on the same draw is known")
        return known is not None

    def take_report(
        self, signed: Signed[WorkClaim], leaves: tuple[Leaf, ...], at: UnixMillis
    ) -> None:
        """Take the report of an audit that was drawn, once.

        Raises:
            Conflict: nobody asks for it (any more), or it does not follow from its distances.
            BadSignature, Malformed, Equivocation: see `record` and `has_recorded`.
        """
        claim = signed.message
        if claim.what != "report":
            raise Conflict("this claim is no report")
        if self.has_recorded(claim):
            return
        if not self.record_of_job.checking.wants(Reported(claim, findings_of(leaves))):
            raise Conflict("this report is not wanted")
        self.record(events.WorkClaimed(claim, at), signed, Leaves(claim.digest(), leaves))

    def unsealed(self) -> tuple[Message, ...]:
        """All messages that no seal holds yet, in the order they were recorded."""
        return tuple(signed.message for signed in self.history.pending.values())

    def sign(self, message: M) -> Signed[M]:
        """A message of ours, signed with the session key; it binds once it is recorded."""
        return self._signer.session.sign(message)

    def items_of(self, round: RoundNumber) -> tuple[tuple[Digest, bytes], ...]:
        """What was kept after the seal before up to that of `round`: names and bytes, in order."""
        if round not in self._items:
            start, end = self._ends[round - 1], self._ends[round]
            rows = takewhile(lambda row: row.sequence <= end, self.file.rows(after=start))
            named = tuple((kept_name(row.data), row.data) for row in rows if row.kind == KEPT)
            recent = sorted(self._items)[-REMEMBERED_ROUNDS + 1 :]
            self._items = {each: self._items[each] for each in recent} | {round: named}
        return self._items[round]

    # ------------------------------------------------------------------------- what is changed

    def record(self, event: events.Event, *kept: Kept) -> bool:
        """Take an event with the messages it is about; False, and nothing is kept, if it is moot.

        Raises:
            BadSignature, Malformed, Conflict, Equivocation: `kept` has no place in the history.
            Unavailable: the journal cannot be written; nothing has changed.
        """
        return self.record_all([(event, kept)])

    def record_all(self, happened: Sequence[Happened]) -> bool:
        """Take what happened in one write; errors as `record`."""
        if not happened or not self._take(happened):
            return False
        self.go_on(self.state.at)
        return True

    async def record_soon(self, event: events.Event) -> None:
        """Take an event in one write with others of this kind: those that every member has.

        What was looked at before may have changed by then, so only for what depends on nothing.

        Raises:
            Unavailable: the journal cannot be written; nothing has changed.
        """
        self._gathered.append(event)
        if self._stored is None:
            loop = asyncio.get_running_loop()
            self._stored = loop.create_future()
            loop.call_later(GATHER, self._record_gathered, self._stored)
        await asyncio.shield(self._stored)

    def _record_gathered(self, stored: asyncio.Future[None]) -> None:
        gathered, self._gathered, self._stored = self._gathered, [], None
        try:
            self.record_all([(event, ()) for event in gathered])
        except Exception as error:  # whoever waits has to hear of a bug, too
            stored.set_exception(error)
            stored.exception()  # perhaps nobody waits for it any more
        else:
            stored.set_result(None)

    def go_on(self, at: UnixMillis) -> None:
        """Store the seals that are due, and what draws ask for; errors as `seal`."""
        while True:
            if isinstance(self.state.phase, SealPhase):
                self.seal(at)
                continue
            event = next_event(self.state, self.record_of_job, self.unsealed, self.may_work(), at)
            if event is None:
                return
            if not self._take([(event, ())]):
                raise InvariantBroken(f"round {self.state.round}: {event} changes nothing")

    def check(
        self,
        at: UnixMillis,
        *kept: Kept,
        notices: Sequence[events.NoticeDue] = (),
        unsealed: frozenset[Digest] = frozenset(),
        seal_wanted: bool = False,
    ) -> bool:
        """Record what draws ask for beside what they allow; errors as `record`."""
        checked = checked_now(
            self.state,
            self.record_of_job,
            self.unsealed,
            self.may_work(),
            notices,
            at,
            unsealed=unsealed,
            seal_wanted=seal_wanted,
        )
        return self.record(checked, *kept)

    def seal(self, at: UnixMillis) -> None:
        """Derive, sign and store the seal that is due.

        Raises:
            InvariantBroken: none follows from what was recorded; `failure` says so from then on.
            Unavailable: the journal cannot be written; the seal stays due.
        """
        try:
            self._seal(at)
        except (Refused, Misbehaved) as error:
            # Whatever leads here was let in by `acceptance` or by the machine: our bug.
            self.failure = InvariantBroken(f"round {self.state.round}: {error.message}")
            self.changes.mark()
            raise self.failure from error

    def _seal(self, at: UnixMillis) -> None:
        phase, round = self.state.phase, self.state.round
        assert isinstance(phase, SealPhase)
        last = is_last_round(self.state)
        named: list[Kept] = [phase.buckets[bucket] for bucket in sorted(phase.buckets)]
        history = self.history
        for item in named:
            history = follow(history, item)
        under = UnderSeal(tuple(history.pending.values()), history.leaves)
        derived = derive_seal(self.record_of_job, under, last=last)
        signed = self._signer.wallet.sign(derived.seal, self._signer.domain)
        report = self._report(phase, round, at)
        sealed = events.Sealed(round, last, at)
        if not self._take([(sealed, (*named, signed))], report):
            raise InvariantBroken(f"round {round} was not waiting for its seal")

    def note_validation(self, round: RoundNumber, loss: int, at: UnixMillis) -> None:
        """Keep the loss on validation rows after `round` (1e-6), once; not if that is long ago."""
        report = self.newest_report
        if report is None or report.step != round or report.validation_millionths is not None:
            return
        if not 0 <= loss <= MAX_LOSS:
            self._tell("validation_refused", step=round, loss=loss)
            return
        self._state_validation(round, loss, at)
        self.newest_report = replace(report, validation_millionths=loss)
        self._store([Row(REPORT, self.newest_report.encoded())])
        self._tell("validated", step=round, loss=loss)
        self.changes.mark()

    def _state_validation(self, round: RoundNumber, loss: int, at: UnixMillis) -> None:
        """Sign the loss, where the job may stop by it, and stop the job, if it is to.

        Validation comes before the items of a round, which then is one without work.
        """
        record, rule = self.record_of_job, self.record_of_job.spec.batch.stop_early
        is_known = round <= record.validations.newest or bool(self.pending(Validation))
        if rule is None or is_known or self.state.draining or record.ended:
            return
        step = StepNumber(self.state.round)
        said = Validation(job=record.job, step=step, of=StepNumber(round), loss=loss)
        may_work, name = self.may_work(), frozenset({said.digest()})
        checked = checked_now(self.state, record, self.unsealed, may_work, (), at, unsealed=name)
        if not record.validations.after(said, rule).end_work(rule):
            self.record(checked, self.sign(said))
            return
        checked = replace(checked, takes_work=False)
        self.record_all([(checked, (self.sign(said),)), (events.Controlled("stop", at), ())])
        self._tell("stops_early", step=round, loss=loss)

    def _take(self, happened: Sequence[Happened], report: StepReport | None = None) -> bool:
        state, history = self.state, self.history
        under = history
        taken: list[tuple[events.Event, list[Kept]]] = []
        asked: list[events.Effect] = []
        for event, kept in happened:
            after, effects = advance(state, event, self.rules)
            if not effects and replace(after, at=state.at) == state:
                continue
            items = [*kept, *self._signed(effects)]
            for item in items:
                if isinstance(item, Signed) and isinstance(item.message, Seal):
                    under = history
                history = follow(history, item)
            taken.append((event, items))
            asked += effects
            state = after
        if not taken:
            return False
        stored: list[Row | Kept] = []
        for event, items in taken:
            stored += [Row(EVENT, encode_event(event)), *items]
        self._store([*stored, Row(REPORT, report.encoded())] if report else stored)
        for event, items in taken:
            self._tell_of(event, items, report)
            self._note_join_and_start(state, event)
        self._tell_reopened(state)
        self.newest_report = report or self.newest_report
        exchanged = _exchanged(self.state)
        self.state, self.history = state, history
        self._note_seal(under)
        for effect in asked:
            self.on_effect(effect)
        if any(a is not b for a, b in zip(exchanged, _exchanged(state), strict=True)):
            self.exchanged.mark()
        self.changes.mark()
        return True

    def _store(self, stored: Sequence[Row | Kept]) -> None:
        first = len(self.file) + 1
        self.file.append(
            each if isinstance(each, Row) else Row(KEPT, encode_kept(each)) for each in stored
        )
        for sequence, each in enumerate(stored, start=first):
            if not isinstance(each, Row):
                self._note_kept(each, sequence)

    def _signed(self, effects: Iterable[events.Effect]) -> list[Kept]:
        return [
            self._signer.session.sign(effect.message)
            for effect in effects
            if isinstance(effect, events.SignNotice | events.SignRoundClosed)
        ]

    def _report(self, phase: SealPhase, round: RoundNumber, at: UnixMillis) -> StepReport | None:
        if phase.closed is None:
            return None  # nothing was learnt
        batch, model = self.record_of_job.spec.batch, self.record_of_job.spec.model
        merged = [phase.open.claims[name] for name in phase.closed.weights]
        items = {(claim.group, item) for claim in merged for item in claim.numbers}
        losses = {
            item: result.loss
            for group, results in phase.open.counted.items()
            for item, result in results.items()
            if result.loss is not None and (group, item) in items
        }
        mean = self.record_of_job.weights.mean(losses)
        if mean is None:
            return None
        tokens = len(losses) * batch.rows_per_unit * model.sequence_length
        since = self.newest_report.at if self.newest_report else self._began_at
        speed = tokens * 1000 // max(1, at - since) if since is not None else 0
        return StepReport(StepNumber(round), mean, speed, at)

    def _tell_reopened(self, after: RoundState) -> None:
        match self.state.phase, after.phase:
            case Commit(open=before), Work(open=open) if self.state.round == after.round:
                lost = _num_counted(before) - _num_counted(open)
                self._tell("reopened", step=after.round, items=lost)

    def _tell_of(
        self, event: events.Event, items: Iterable[Kept], report: StepReport | None
    ) -> None:
        round = self.state.round
        tell_event(self._tell, round, event)
        if isinstance(event, events.Held):
            name = "buckets_held" if isinstance(self.state.phase, Reduce) else "shard_stored"
            self._tell(name, step=round, peer=event.holder, parts=len(event.digests))
        for item in items:
            match item:
                case Signed(message=RoundClosed() as closed):
                    self._tell("round_closed", step=round, claims=len(closed.claims))
                case Signed(message=Seal() as seal):
                    if isinstance(self.state.phase, SealPhase) and self.state.phase.what == "void":
                        self._tell("round_void", step=round)
                    self._tell(
                        "seal_stored",
                        step=round,
                        seal=seal.digest(),
                        loss=report.loss_millionths if report else None,
                        gradient_norm=seal.gradient_norm,
                        last=seal.last,
                        all_members=len(self.state.members),
                    )


def tell_event(tell: Tell, round: RoundNumber, event: events.Event) -> None:
    """Say in the log what has happened."""
    match event:
        case events.Joined(peer=peer, group=group, rate=rate):
            tell("peer_joined", step=round, peer=peer, stage=group, rate=rate)
        case events.Connected(peer=peer, applied=applied):
            tell("peer_returned", step=round, peer=peer, applied=applied)
        case events.Disconnected(peer=peer):
            tell("peer_lost", step=round, peer=peer)
        case events.LeaveAsked(peer=peer):
            tell("peer_leaving", step=round, peer=peer)
        case events.ItemsDone(peer=peer, results=results):
            for result in results:
                tell("item_done", step=round, peer=peer, stage=result.group, item=result.item)
        case events.ItemsLost(peer=peer, items=lost, off=off):
            tell("items_lost", step=round, peer=peer, items=len(lost), off=off)
        case events.WorkClaimed(claim=claim) if claim.what == "report":
            reported = {"subject": claim.subject, "report": claim.digest()}
            tell("report_taken", step=round, peer=claim.peer, **reported)
        case events.WorkClaimed(claim=claim):
            stage, seq, num = claim.group, claim.seq, len(claim.numbers)
            tell("claim_stored", step=round, peer=claim.peer, stage=stage, seq=seq, items=num)
        case events.Reduced(claim=claim):
            stage, bucket = claim.group, claim.bucket
            tell("bucket_stored", step=round, peer=claim.peer, stage=stage, bucket=bucket)
        case events.Applied(peer=peer, round=applied):
            tell("seal_applied", step=applied, peer=peer)


def _num_counted(open: OpenRound) -> int:
    return sum(len(results) for results in open.counted.values())


def _exchanged(state: RoundState) -> tuple[object, ...]:
    """What `round.claims` tells, as objects that are replaced when they change."""
    phase, open = state.phase, state.open
    claims = (None, None) if open is None else (open.claims, open.dealing)
    buckets = phase.buckets if isinstance(phase, Reduce) else None
    is_delivering = isinstance(phase, Commit) and phase.is_delivering
    holders = state.members if is_delivering else None  # who is to hold what follows from them
    return (state.round, type(phase), *claims, holders, buckets)


def _opening_of(spec: JobSpec, opening: Opening, signer: Signer) -> Signed[Message]:
    message = JobOpening(
        job=spec.job(),
        job_spec=spec.digest(),
        session_key=signer.session.key,
        anchorer=opening.anchorer,
        opening_block=opening.opening_block,
        outside_auditors=opening.auditors.digest() if opening.auditors else ZERO_DIGEST,
    )
    return signer.wallet.sign(message, signer.domain)
