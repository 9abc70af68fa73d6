"""Everything a worker is bound to, as the fold of its journal; nothing is sent before it is stored.

Kept are: the job's history up to the last seal (the same items that the coordinator keeps), the
stage that the coordinator gave us, our own GradCommits and AveragedChunks of the step in work, and
the state root after each seal that we applied. After a crash the same messages are sent again; a
second value is never made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contracts.governance.checking import Begin, unread
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.governance.rounds import applied_chunks
from contracts.terms.auditors import AuditorList
from contracts.terms.chunks import Chunking
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Conflict, Equivocation, InvariantBroken, Malformed
from contracts.terms.history import Kept, Leaves, decode_kept, encode_kept
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    JobOpening,
    JobSpec,
    Message,
    Seal,
)
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.typed_data import Domain
from training.journal import Journal, Row
from training.worker.sealed import SealedWork

KEPT, COMMIT, CHUNK, APPLIED = "kept", "own_commit", "own_chunk", "applied"
STAGE, REBUILT, REPORT = "stage", "rebuilt", "own_report"


@dataclass(frozen=True)
class SealedStep:
    """What has to be applied for one seal: nothing, or chunks and the norm that clips them."""

    seal: Seal
    chunks: tuple[AveragedChunk, ...]  # of all stages; none in a step without an update
    states: Mapping[StageIndex, Digest]
    """State roots that its update was computed on: of the GradCommits in its AverageSet."""
    chunking: Chunking
    has_work: bool = True

    def of_stage(self, stage: StageIndex) -> tuple[AveragedChunk, ...]:
        """The chunks that one stage applies, in order."""
        named = {(chunk.stage, chunk.chunk): chunk for chunk in self.chunks}
        return tuple(named[name] for name in self.chunking.of_stage(stage) if name in named)


@dataclass(frozen=True)
class NewSeal:
    """A valid seal that is not stored yet, with what the book holds once it is."""

    items: tuple[Kept, ...]  # everything under it, itself last
    sealed: SealedStep
    before: JobHistory
    under: JobHistory  # with everything but the seal itself
    after: JobHistory


@dataclass(frozen=True)
class OwnCommit:
    """One of our GradCommits, as it is sent."""

    signed: Signed[GradCommit]
    leaves: Leaves

    @property
    def units(self) -> frozenset[ItemNumber]:
        """Units that it binds us to."""
        return frozenset(leaf.unit for leaf in self.leaves.leaves)


class WorkerBook:
    """History, own messages and applied states of one lease."""

    def __init__(
        self,
        journal: Journal,
        spec: Signed[JobSpec],
        opening: Signed[JobOpening],
        domain: Domain,
        auditors: AuditorList | None = None,
        begin: Begin = unread,
    ) -> None:
        """Read the journal, or begin it with the job's opening.

        A checked job has a list of outside `auditors`, and `begin` makes the fold of its draws.

        Raises:
            BadSignature: spec or opening are not signed by poster and coordinator.
            Conflict: the journal is of another job.
        """
        self._journal = journal
        self.history = JobHistory(domain, begin)
        self.work = SealedWork()
        self._reports: dict[tuple[Digest, int], Signed[AuditReport]] = {}
        self._own: dict[Digest, Signed[AuditReport]] = {}  # the same by their names
        self._own_sealed: set[Digest] = set()
        self.commits: list[OwnCommit] = []
        self.chunks: dict[ChunkIndex, Signed[AveragedChunk]] = {}
        self.steps: dict[StepNumber, SealedStep] = {}
        self.roots: dict[StepNumber, Digest] = {}
        self.stage: StageIndex | None = None
        if not len(journal):
            beginning: list[Kept] = [
                Signed(spec.message, spec.signature),
                Signed(opening.message, opening.signature),
                *([auditors] if auditors else []),
            ]
            for item in beginning:  # refuse a wrong one before it is on disk
                self.history = follow(self.history, item)
            journal.append(Row(KEPT, encode_kept(item)) for item in beginning)
            self.history = JobHistory(domain, begin)
        for row in journal.rows():
            self._read(row)
        if self.record.job != spec.message.job() or self.record.opening != opening.message:
            raise Conflict("this folder is of another job")

    def _read(self, row: Row) -> None:
        match row.kind:
            case "kept":
                self._note(decode_kept(row.data))
            case "own_commit":
                self.commits.append(_own_commit(row.data))
            case "own_report":
                self._note_report(expect(decode_signed(row.data), AuditReport))
            case "own_chunk":
                signed = expect(decode_signed(row.data), AveragedChunk)
                self.chunks[signed.message.chunk] = signed
            case "applied":
                step, root = _applied(row.data)
                self.roots[step] = root
            case "stage":
                self.stage, self.roots = StageIndex(_number(row.data)), {}
            case "rebuilt":
                self._forget_after(_number(row.data))

    def _note(self, item: Kept) -> None:
        under, self.history = self.history, follow(self.history, item)
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            self._note_seal(_sealed_step(under, item.message), under)

    def _note_seal(self, sealed: SealedStep, under: JobHistory) -> None:
        self.steps[sealed.seal.step] = sealed
        self.commits, self.chunks = [], {}
        if self.record.spec.rules.audit is not None:
            self.work.note(under)
            sealed_now = {signed.message.digest() for signed in under.pending.values()}
            self._own_sealed |= self._own.keys() & sealed_now
            self.work.forget_before(self.oldest_needed)

    def _note_report(self, signed: Signed[AuditReport]) -> None:
        self._reports[signed.message.subject, signed.message.attempt] = signed
        self._own[signed.message.digest()] = signed

    def _forget_after(self, step: int) -> None:
        self.roots = {known: root for known, root in self.roots.items() if known <= step}

    # -------------------------------------------------------------------------- what is known

    @property
    def record(self) -> JobRecord:
        """What the seals have established."""
        assert self.history.record is not None  # from the opening on, which begins every journal
        return self.history.record

    @property
    def parties(self) -> tuple[Signed[Message], ...]:
        """See `JobHistory.parties`."""
        return self.history.parties

    @property
    def sealed(self) -> StepNumber:
        """The last step whose seal is stored here; 0 before the first."""
        return self.record.step

    @property
    def oldest_needed(self) -> StepNumber:
        """The oldest step that a draw may still ask for, as far as seals are known here."""
        found = self.record.checking.oldest_needed
        return StepNumber(self.sealed + 1) if found is None else found

    def committed(self) -> frozenset[ItemNumber]:
        """Units of the step in work that we are bound to."""
        return frozenset(unit for commit in self.commits for unit in commit.units)

    def state_root(self, stage: StageIndex, step: StepNumber) -> Digest | None:
        """State root of a stage after `step`, as the members agreed; None while none is sealed.

        It stands in the GradCommits of the next step with an update; steps without one change
        nothing.
        """
        for later in range(step + 1, self.sealed + 1):
            if self.steps[StepNumber(later)].chunks:
                return self.steps[StepNumber(later)].states.get(stage)
        return None

    def updated(self, step: StepNumber) -> StepNumber:
        """The newest step up to this one with an update, whose state it still is; 0: none."""
        for number in range(step, 0, -1):
            if (sealed := self.steps.get(StepNumber(number))) is None or sealed.chunks:
                return StepNumber(number)
        return StepNumber(0)

    def read_seal(self, items: Sequence[Kept]) -> NewSeal | None:
        """Check a seal with everything under it; None if it is stored already.

        Raises:
            Malformed, Conflict, BadSignature, InvalidSeal: not the valid seal that comes next.
            Equivocation: another seal of this step is stored.
        """
        seal = last_seal(items)
        if seal.message.step <= self.sealed:
            known = self.steps[seal.message.step].seal
            if known != seal.message:
                raise Equivocation(
                    f"two seals of step {known.step}",
                    first=known.digest().hex(),
                    second=seal.message.digest().hex(),
                )
            return None
        under = self.history
        for item in items[:-1]:
            under = follow(under, item)
        after = follow(under, items[-1])
        return NewSeal(tuple(items), _sealed_step(under, seal.message), self.history, under, after)

    # ------------------------------------------------------------------------- what is changed

    def keep_commit(self, commit: OwnCommit) -> None:
        """Store a GradCommit of ours, before it is sent."""
        value: dict[str, Value] = {
            "commit": commit.signed.encoded(),
            "leaves": encode_kept(commit.leaves),
        }
        self._journal.append([Row(COMMIT, encode(value))])
        self.commits.append(commit)

    def unsealed_reports(self) -> tuple[Digest, ...]:
        """Reports of ours that count if the next seal holds them, whoever has taken them.

        A GradCommit names them, so that no seal over it can leave them out.
        """
        wants = self.record.checking.wants
        wanted = (name for name, signed in self._own.items() if wants(signed.message))
        return tuple(sorted(name for name in wanted if name not in self._own_sealed))

    def named_reports(self, commits: Iterable[OwnCommit]) -> tuple[Signed[AuditReport], ...]:
        """The reports that GradCommits of ours name."""
        names = {name for commit in commits for name in commit.signed.message.reports}
        return tuple(self._own[name] for name in sorted(names))

    def own_report(self, subject: Digest, attempt: int) -> Signed[AuditReport] | None:
        """What we have said as this auditor of a draw."""
        return self._reports.get((subject, attempt))

    def keep_report(self, signed: Signed[AuditReport]) -> None:
        """Store an AuditReport of ours, before it is sent."""
        self._journal.append([Row(REPORT, signed.encoded())])
        self._note_report(signed)

    def keep_chunk(self, signed: Signed[AveragedChunk]) -> None:
        """Store an AveragedChunk of ours, before it is sent."""
        self._journal.append([Row(CHUNK, signed.encoded())])
        self.chunks[signed.message.chunk] = signed

    def keep_seal(self, new: NewSeal) -> None:
        """Store a seal that `read_seal` has let through, with everything under it."""
        if new.before is not self.history:
            raise InvariantBroken(f"two seals of step {new.sealed.seal.step} were read at once")
        self._journal.append(Row(KEPT, encode_kept(item)) for item in new.items)
        self.history = new.after
        self._note_seal(new.sealed, new.under)

    def keep_stage(self, stage: StageIndex) -> None:
        """Store which stage is ours; the state of another one is forgotten."""
        self._journal.append([Row(STAGE, encode({"stage": stage}))])
        self.stage, self.roots = stage, {}

    def keep_rebuilt(self, step: StepNumber) -> None:
        """Store that our states after `step` were wrong, and are built again."""
        self._journal.append([Row(REBUILT, encode({"step": step}))])
        self._forget_after(step)

    def keep_applied(self, step: StepNumber, root: Digest) -> None:
        """Store the state root that a seal led to.

        Raises:
            InvariantBroken: it led to another one before.
        """
        if (before := self.roots.get(step)) is not None:
            if before != root:
                raise InvariantBroken(f"step {step} was applied again to another state")
            return
        value: dict[str, Value] = {"step": step, "state_root": root}
        self._journal.append([Row(APPLIED, encode(value))])
        self.roots[step] = root


def last_seal(items: Sequence[Kept]) -> Signed[Seal]:
    """The seal that ends `items`; raises Malformed if there is none."""
    match items[-1:]:
        case [Signed(message=Seal() as seal, signature=signature)]:
            return Signed(seal, signature)
    raise Malformed("a seal comes last, after everything under it")


def _sealed_step(under: JobHistory, seal: Seal) -> SealedStep:
    """What a seal over the pending messages of `under` has applied."""
    assert under.record is not None  # a seal comes after the opening
    messages = [signed.message for signed in under.pending.values()]
    chunks = applied_chunks(under.record.spec, messages)
    has_work = any(isinstance(message, GradCommit) for message in messages)
    return SealedStep(seal, chunks, _states(messages), under.record.spec.chunking, has_work)


def _own_commit(data: bytes) -> OwnCommit:
    match decode(data):
        case {"commit": bytes(commit), "leaves": bytes(leaves)}:
            item = decode_kept(leaves)
            assert isinstance(item, Leaves)  # we wrote it
            return OwnCommit(expect(decode_signed(commit), GradCommit), item)
    raise Malformed("no GradCommit of ours")


def _applied(data: bytes) -> tuple[StepNumber, Digest]:
    match decode(data):
        case {"step": int(step), "state_root": bytes(root)}:
            return StepNumber(step), Digest(root)
    raise Malformed("no applied step")


def _number(data: bytes) -> int:
    match decode(data):
        case {"stage": int(number)} | {"step": int(number)}:
            return number
    raise Malformed("no stage, and no step")


def _states(messages: Iterable[Message]) -> dict[StageIndex, Digest]:
    messages = tuple(messages)
    averages = (each for each in messages if isinstance(each, AverageSet))
    names = {member.grad_commit for average in averages for member in average.members}
    commits = (each for each in messages if isinstance(each, GradCommit))
    return {each.stage: each.state_root for each in commits if each.digest() in names}
