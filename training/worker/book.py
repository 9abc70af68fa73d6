"""Everything a worker is bound to, as the fold of its journal; nothing is sent before it is stored.

Kept are: the job's history up to the last seal (the same items that the coordinator keeps), the
group that the coordinator gave us, our own claims, and the state root after each seal that we
applied. After a crash the same claims are sent again; a second value is never made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from contracts.governance.checking import Begin, Reported, unread
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.governance.rounds import merge_of
from contracts.terms.auditors import AuditorList
from contracts.terms.chunks import Chunk
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Conflict, Equivocation, InvariantBroken, Malformed
from contracts.terms.history import Kept, Leaves, decode_kept, encode_kept, kept_digest
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobOpening, JobSpec, Seal
from contracts.terms.signatures import Signed, expect
from contracts.terms.typed_data import Domain
from contracts.terms.work import MAX_REPORTS, Leaf, WorkClaim, findings_of
from training.journal import Journal, Row
from training.worker.sealed import SealedWork

KEPT, CLAIM, APPLIED, GROUP, REBUILT = "kept", "own_claim", "applied", "group", "rebuilt"


@dataclass(frozen=True)
class SealedRound:
    """What has to be applied for one seal: nothing, or buckets and the norm that clips them."""

    seal: Seal
    buckets: tuple[WorkClaim, ...] = ()  # of all groups; none in a void round
    bases: tuple[Digest, ...] = ()  # roots that its update was computed on, one a group

    def of(self, buckets: Iterable[Chunk]) -> tuple[WorkClaim, ...]:
        """Claims of these buckets, in their order."""
        named = {(each.group, each.bucket): each for each in self.buckets}
        return tuple(named[bucket] for bucket in buckets if bucket in named)


@dataclass(frozen=True)
class NewSeal:
    """A valid seal that is not stored yet, with what the book holds once it is."""

    items: tuple[Kept, ...]  # everything under it, itself last
    sealed: SealedRound
    before: JobHistory
    under: JobHistory  # with everything but the seal itself
    after: JobHistory


@dataclass(frozen=True)
class OwnClaim:
    """One of our claims, as it is sent."""

    signed: Signed[WorkClaim]
    leaves: tuple[Leaf, ...] = ()  # of work and reports

    @property
    def claim(self) -> WorkClaim:
        """What we said."""
        return self.signed.message

    @property
    def name(self) -> Digest:
        """What others call it."""
        return self.claim.digest()

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Claim and leaves, as they travel in a call."""
        return self.signed.encoded(), encode_kept(Leaves(self.name, self.leaves))

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What a history keeps of it."""
        beside = (Leaves(self.name, self.leaves),) if self.leaves else ()
        return self.signed, *beside


@dataclass
class Bound:
    """What we have claimed in the round in work."""

    work: list[OwnClaim] = field(default_factory=list)  # by seq
    buckets: dict[ChunkIndex, OwnClaim] = field(default_factory=dict)

    @property
    def items(self) -> frozenset[ItemNumber]:
        """Items of the round that we are bound to."""
        return frozenset(leaf.item for own in self.work for leaf in own.leaves)


class WorkerBook:
    """History, own claims and applied states of one lease."""

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
        self.bound = Bound()
        self._reports: dict[tuple[Digest, int], OwnClaim] = {}
        self._unsealed: dict[Digest, OwnClaim] = {}  # reports, by their names
        self.rounds: dict[StepNumber, SealedRound] = {}
        self.roots: dict[StepNumber, Digest] = {}
        self.group: StageIndex | None = None
        self._read_leaves: tuple[Leaf, ...] = ()  # of the claim that comes next
        if not len(journal):
            beginning: list[Kept] = [spec, opening, *([auditors] if auditors else [])]
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
                under, item = self.history, decode_kept(row.data)
                self.history = follow(under, item)
                if isinstance(item, Signed) and isinstance(item.message, Seal):
                    self._note_seal(_sealed_round(under, item.message), under)
            case "own_claim":
                self._read_own(decode_kept(row.data))
            case _:
                self._read_own_fact(decode(row.data))

    def _read_own_fact(self, value: Value) -> None:
        match value:
            case {"round": int(round), "state_root": bytes(root)}:
                self.roots[StepNumber(round)] = Digest(root)
            case {"group": int(group)}:
                self.group, self.roots = StageIndex(group), {}
            case {"round": int(round)}:
                self._forget_after(round)
            case _:
                raise Malformed("no applied round, group or rebuilt round")

    def _read_own(self, item: Kept) -> None:
        if isinstance(item, Leaves):
            self._read_leaves = item.leaves
        elif isinstance(item, Signed):
            self._note_claim(OwnClaim(expect(item, WorkClaim), self._read_leaves))
            self._read_leaves = ()

    def _note_seal(self, sealed: SealedRound, under: JobHistory) -> None:
        self.rounds[sealed.seal.step] = sealed
        self.bound = Bound()
        newest = self.history.newest
        if self.record.spec.rules.audit is not None and newest is not None:
            self.work.note(under, newest.names)
            for name in self._unsealed.keys() & newest.names:
                del self._unsealed[name]
            self.work.forget_before(self.oldest_needed)

    def _note_claim(self, own: OwnClaim) -> None:
        claim = own.claim
        if claim.what == "report":
            self._reports[claim.subject, claim.attempt] = self._unsealed[own.name] = own
        elif claim.what == "work":
            self.bound.work.append(own)
        elif claim.what == "bucket":
            self.bound.buckets[claim.bucket] = own

    def _forget_after(self, round: int) -> None:
        self.roots = {known: root for known, root in self.roots.items() if known <= round}

    # -------------------------------------------------------------------------- what is known

    @property
    def record(self) -> JobRecord:
        """What the seals have established."""
        assert self.history.record is not None  # from the opening on, which begins every journal
        return self.history.record

    @property
    def sealed(self) -> StepNumber:
        """The last round whose seal is stored here; 0 before the first."""
        return self.record.step

    @property
    def pending(self) -> frozenset[StepNumber]:
        """Rounds with claims that no seal holds, and that a later round may merge."""
        claims = (each.message for each in self.history.pending.values())
        return frozenset(each.round for each in claims if isinstance(each, WorkClaim))

    @property
    def oldest_needed(self) -> StepNumber:
        """The oldest round that a draw may still ask for, as far as seals are known here."""
        drawn = self.record.checking.oldest_needed
        rounds = {StepNumber(self.sealed + 1), *self.pending}
        return min(rounds if drawn is None else {drawn, self.work.oldest_of(drawn), *rounds})

    def state_root(self, group: StageIndex, round: StepNumber) -> Digest | None:
        """State root of a group after `round`, as the members agreed; None while none is sealed.

        It stands in the RoundClosed of the next update; void rounds change nothing.
        """
        for later in range(round + 1, self.sealed + 1):
            if bases := self.rounds[StepNumber(later)].bases:
                return bases[group]
        return None

    def updated(self, round: StepNumber) -> StepNumber:
        """The newest round up to this one with an update, whose state it still is; 0: none."""
        for number in range(round, 0, -1):
            if (sealed := self.rounds.get(StepNumber(number))) is None or sealed.buckets:
                return StepNumber(number)
        return StepNumber(0)

    def read_seal(self, items: Sequence[Kept]) -> NewSeal | None:
        """Check a seal with everything under it; None if it is stored already.

        Raises:
            Malformed, Conflict, BadSignature, InvalidSeal: not the valid seal that comes next.
            Equivocation: another seal of this round is stored.
        """
        seal = last_seal(items)
        if seal.message.step <= self.sealed:
            known = self.rounds[seal.message.step].seal
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
        return NewSeal(tuple(items), _sealed_round(under, seal.message), self.history, under, after)

    # ------------------------------------------------------------------------------ own claims

    def unsealed_reports(self) -> tuple[OwnClaim, ...]:
        """Reports of ours that count if the next seal holds them, ascending, whoever has them.

        A claim of work names them, so that no seal over it can leave them out.
        """
        wants = self.record.checking.wants
        found = (
            own
            for own in self._unsealed.values()
            if wants(Reported(own.claim, findings_of(own.leaves)))
        )
        return tuple(sorted(found, key=lambda own: own.name))[:MAX_REPORTS]

    def named_reports(self, claim: WorkClaim) -> tuple[OwnClaim, ...]:
        """The reports that a claim of ours of the round in work names."""
        return tuple(self._unsealed[name] for name in claim.reports)

    def own_report(self, subject: Digest, attempt: int) -> OwnClaim | None:
        """What we have said as this auditor of a draw."""
        return self._reports.get((subject, attempt))

    def keep_claim(self, own: OwnClaim) -> None:
        """Store a claim of ours, before it is sent."""
        self._journal.append(Row(CLAIM, encode_kept(item)) for item in reversed(own.kept))
        self._note_claim(own)

    def said(self) -> dict[Digest, Kept]:
        """What is kept of all that we have said since the last seal, and of unsealed reports."""
        own = (*self.bound.work, *self.bound.buckets.values(), *self._unsealed.values())
        return {kept_digest(item): item for each in own for item in each.kept}

    # ------------------------------------------------------------------------- what is changed

    def keep_seal(self, new: NewSeal) -> None:
        """Store a seal that `read_seal` has let through, with everything under it."""
        if new.before is not self.history:
            raise InvariantBroken(f"two seals of step {new.sealed.seal.step} were read at once")
        self._journal.append(Row(KEPT, encode_kept(item)) for item in new.items)
        self.history = new.after
        self._note_seal(new.sealed, new.under)

    def keep_group(self, group: StageIndex) -> None:
        """Store which group is ours; the states of another one are not ours any more."""
        self._journal.append([Row(GROUP, encode({"group": group}))])
        self.group, self.roots = group, {}

    def keep_rebuilt(self, round: StepNumber) -> None:
        """Store that our states after `round` were wrong, and are built again."""
        self._journal.append([Row(REBUILT, encode({"round": round}))])
        self._forget_after(round)

    def keep_applied(self, round: StepNumber, root: Digest) -> None:
        """Store the state root that a seal led to.

        Raises:
            InvariantBroken: it led to another one before.
        """
        if (before := self.roots.get(round)) is not None:
            if before != root:
                raise InvariantBroken(f"step {round} was applied again to another state")
            return
        value: dict[str, Value] = {"round": round, "state_root": root}
        self._journal.append([Row(APPLIED, encode(value))])
        self.roots[round] = root


def last_seal(items: Sequence[Kept]) -> Signed[Seal]:
    """The seal that ends `items`; raises Malformed if there is none, or another one before it."""
    seals = [each for each in items if isinstance(each, Signed) and isinstance(each.message, Seal)]
    if len(seals) != 1 or seals[0] is not items[-1]:
        raise Malformed("one seal comes last, after everything under it")
    return expect(seals[0], Seal)


def _sealed_round(under: JobHistory, seal: Seal) -> SealedRound:
    """What a seal over the pending messages of `under` has applied."""
    assert under.record is not None  # a seal comes after the opening
    merge = merge_of(under.record.spec, [signed.message for signed in under.pending.values()])
    if merge is None:
        return SealedRound(seal)
    return SealedRound(seal, merge.buckets, merge.closed.bases)
