"""What is known of a running job: its terms, its members, and where its round stands. Pure.

Values only; `machine.advance` makes one from another. Maps are by peer, group or item, so that an
event copies one of them. Units: moments in Unix milliseconds, spans in milliseconds.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from contracts.governance.gates import Gates
from contracts.terms.ids import Address, Digest, JobId, PeerId
from contracts.terms.items import Cursor, count
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.targets import ItemWeights
from contracts.terms.work import RoundClosed, WorkClaim
from training.strategies.port import (
    Bucket,
    Group,
    Item,
    Items,
    Layout,
    Member,
    Result,
    RoundNumber,
)

What: TypeAlias = Literal["update", "void", "empty"]
"""A round with an update; one whose work came to none; one without work, by which draws go on."""

COORDINATOR = PeerId(bytes(32))
"""Who holds what the coordinator keeps."""

LONG_AGO = UnixMillis(0)
NO_ROUND = RoundNumber(0)
FIRST_ROUND = RoundNumber(1)
MOST_DOUBLINGS = 10
NOTHING: Items = frozenset()
NO_BYTES: frozenset[Digest] = frozenset()


@dataclass(frozen=True)
class Terms:
    """What a JobSpec and its strategy's layout say of rounds."""

    job: JobId
    layout: Layout
    weights: ItemWeights
    peers_per_group: int
    """Members that each group waits for before the first round; later one is enough."""
    round_ms: int  # until nothing new is begun; once more as long for what was
    commit_ms: int  # for claims
    deliver_ms: int  # then for shards
    reduce_ms: int  # for the dealt reducer, and as long for the next
    hold_ms: int  # that a seal waits for members that do not hold its buckets yet
    redo_after: int  # that a lost peer's unclaimed items wait for it, if others can do them
    lease_grace: int  # that a lost peer stays a member
    is_checked: bool = False  # work is drawn: the job ends with rounds without work

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return self.layout.groups

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every bucket, in the order of `RoundClosed.reducers`."""
        return self.layout.buckets


@dataclass(frozen=True)
class Failings:
    """In how many rounds an owner's members have failed at a duty, and in which one last.

    Of an owner, not of a member: who leaves and comes under another lease is the same owner.
    """

    number: int = 0
    last: RoundNumber = NO_ROUND

    @property
    def until(self) -> RoundNumber:
        """The first round in which its members are counted on again.

        They rest for 2 rounds after the first failing, then for 4, 8 and so on.
        """
        return RoundNumber(self.last + 1 + 2 ** min(self.number, MOST_DOUBLINGS))

    def and_one(self, round: RoundNumber) -> "Failings":
        """One more, in `round`; several in one round are one."""
        return self if self.last == round else Failings(self.number + 1, round)


Remembered: TypeAlias = Mapping[Address, Failings]
"""Of the owners that have failed at a duty."""


def with_failing(known: Remembered, owners: Iterable[Address], round: RoundNumber) -> Remembered:
    """One failing more for each of `owners`."""
    fresh = {owner: known.get(owner, Failings()).and_one(round) for owner in owners}
    return {**known, **fresh} if fresh else known


def has_failed(known: Remembered, owner: Address, round: RoundNumber) -> bool:
    """Whether an owner's members are not counted on in `round`."""
    return owner in known and known[owner].until > round


# ------------------------------------------------------------------------------------- the phases


@dataclass(frozen=True)
class OpenRound:
    """What a round has until its RoundClosed. An item counts, is claimed, and then delivered."""

    issued: Items
    counted: Mapping[Group, Mapping[Item, Result]]  # of every group
    unclaimed: Mapping[PeerId, Items] = field(default_factory=dict)
    """What counts as a peer's work and no claim covers; peers without any are left out."""
    claims: Mapping[Digest, WorkClaim] = field(default_factory=dict)
    """That are stored and not expired; a round without an update hands them on."""
    seqs: Mapping[PeerId, int] = field(default_factory=dict)  # of a peer's next claim; absent: 0
    off: frozenset[PeerId] = frozenset()  # get no items until the next round
    held: Mapping[PeerId, frozenset[Digest]] = field(default_factory=dict)  # shards and buckets
    dealing: Mapping[Bucket, PeerId] = field(default_factory=dict)  # who reduces what
    opened_at: UnixMillis | None = None  # when items could go out
    work_ends: UnixMillis | None = None  # until when items are begun
    num_commits: int = 0  # how often peers were asked for claims
    num_issued: int = 0  # items at first; less are left when claims are asked for


@dataclass(frozen=True)
class Work:
    """Items go out and come back."""

    open: OpenRound
    ends: UnixMillis | None = None  # None: nothing went out yet
    extended: bool = False  # nothing new is begun; `ends` is the second one


@dataclass(frozen=True)
class Commit:
    """Every item that is left counts; claims come in, then shards are delivered."""

    open: OpenRound
    commit_ends: UnixMillis  # of the claims
    ends: UnixMillis  # the same, then that of delivery
    is_delivering: bool = False
    extended: bool = False
    lacking: Mapping[PeerId, frozenset[Digest]] = field(default_factory=dict)
    """Shards that are not delivered, by who is to hold them; only once `is_delivering`."""
    keeping: frozenset[Digest] = frozenset()  # that the coordinator was asked to keep


@dataclass(frozen=True)
class Reduce:
    """RoundClosed is out; claims of buckets come in, and members fetch buckets."""

    open: OpenRound
    closed: RoundClosed
    ends: UnixMillis
    asked: Mapping[Bucket, tuple[PeerId, ...]]  # the dealt reducer, then who was asked instead
    owing: Mapping[PeerId, frozenset[Bucket]]  # who is to reduce what; nobody owes nothing
    buckets: Mapping[Bucket, Signed[WorkClaim]] = field(default_factory=dict)
    needs: Mapping[Bucket, int] = field(default_factory=dict)
    """Owners that have to hold a bucket: two, or one where no other applies it."""
    scarce: frozenset[Bucket] = frozenset()  # for which fewer than that are here
    holders: Mapping[Digest, frozenset[Address]] = field(default_factory=dict)
    """Of each reduced bucket: owners of connected members that hold it; exact while it is thin."""
    thin: frozenset[Digest] = frozenset()  # reduced buckets that too few hold
    whole: Mapping[Group, frozenset[Digest]] = field(default_factory=dict)
    """What members of a group apply, once all buckets are reduced."""
    waiting: frozenset[PeerId] = frozenset()  # members that are here and lack some of that
    gone: frozenset[PeerId] = frozenset()  # were asked for buckets and have left
    full_at: UnixMillis | None = None  # since when all are reduced and held by enough
    extended: bool = False
    keeping: frozenset[Digest] = frozenset()  # that the coordinator was asked to keep


@dataclass(frozen=True)
class Seal:
    """A seal is asked for and not stored yet."""

    open: OpenRound
    what: What
    buckets: Mapping[Bucket, Signed[WorkClaim]] = field(default_factory=dict)
    closed: RoundClosed | None = None


@dataclass(frozen=True)
class Finished:
    """The last seal is stored."""


Phase: TypeAlias = Work | Commit | Reduce | Seal | Finished


@dataclass(frozen=True)
class RoundState:
    """A job between two events. Begin with `first_state`."""

    terms: Terms
    phase: Phase
    round: RoundNumber = FIRST_ROUND  # the one that is worked on; the last one when finished
    members: Mapping[PeerId, Member] = field(default_factory=dict)
    owners: Mapping[PeerId, Address] = field(default_factory=dict)  # of all that ever joined
    watched: frozenset[PeerId] = frozenset()  # members that are away or leaving: time matters
    cursor: Cursor = field(default_factory=Cursor)
    updates: int = 0
    updated: RoundNumber = NO_ROUND  # the round of the newest update
    gates: Gates = field(default_factory=Gates)
    claiming: Remembered = field(default_factory=dict)  # failings at claiming what counts, by owner
    reducing: Remembered = field(default_factory=dict)  # failings at reducing, by owner
    holding: Remembered = field(default_factory=dict)  # failings at holding buckets in time
    at: UnixMillis = LONG_AGO  # of the last event
    started: bool = False  # every group has once had all its peers
    standing_since: UnixMillis | None = None  # timers stand while somebody is waited for
    resumed_at: UnixMillis = LONG_AGO  # the newest restart of the coordinator
    return_by: UnixMillis | None = LONG_AGO
    """Until when those who were here then are waited for; None: a group has had nobody since."""
    next_notice: int = 0
    voids: int = 0  # since the last update, that blamed nobody new
    blamed: frozenset[Address] = frozenset()  # since the last update: did not reduce or give
    is_telling: bool = False  # this round blames an owner that was not blamed since then
    paused: bool = False
    hold_from: RoundNumber | None = None  # the poster's pause: no item of it, or of later rounds
    stopping: bool = False  # the round in work is the last one with work
    draining: bool = False  # all work is sealed; rounds are empty until no draw is open
    may_work: frozenset[PeerId] | None = None  # None: everybody
    takes_work: bool = True  # enough rounds are drawn for one more to be closed
    is_clear: bool = True  # no draw is open, by the newest seal
    unsealed: frozenset[Digest] = frozenset()  # beacons and reports that no seal holds
    seal_wanted: bool = False  # by a round without work, while none is worked on
    noticed: frozenset[tuple[str, PeerId, Digest]] = frozenset()  # about audits, in this round

    @property
    def newest_seal(self) -> RoundNumber:
        """The newest round whose seal is stored; 0 before the first."""
        return self.round if isinstance(self.phase, Finished) else RoundNumber(self.round - 1)

    @property
    def open(self) -> OpenRound | None:
        """What the round in work has; None once the job has ended."""
        return None if isinstance(self.phase, Finished) else self.phase.open

    @property
    def is_held(self) -> bool:
        """Whether the poster's pause has begun."""
        return self.hold_from is not None and self.round >= self.hold_from

    @property
    def is_idle(self) -> bool:
        """Whether no work is begun: draws go on by rounds without work."""
        return self.draining or self.paused or self.is_held

    @property
    def goes_out(self) -> bool:
        """Whether items go out."""
        return self.started and not self.is_idle and isinstance(self.phase, Work)

    @property
    def sealed_items(self) -> int:
        """How many items the seals cover."""
        return self.cursor.next - count(self.cursor.unsealed)

    def is_late(self, claim: WorkClaim) -> bool:
        """Whether work started from the state before the newest one."""
        return claim.round <= self.updated

    @property
    def late(self) -> frozenset[Digest]:
        """Late claims of the round."""
        if self.open is None or not self.terms.layout.merges_late:
            return NO_BYTES
        return frozenset(n for n, claim in self.open.claims.items() if self.is_late(claim))

    def is_current(self, member: Member) -> bool:
        """Whether a member has applied every seal."""
        return member.applied == self.round - 1

    def may(self, peer: PeerId) -> bool:
        """Whether draws, limits and bonds let a peer work."""
        return self.may_work is None or peer in self.may_work


def first_state(terms: Terms) -> RoundState:
    """A job that nobody has joined yet."""
    return begin_round(RoundState(terms, Finished()), {}, {}, {})


def begin_round(
    state: RoundState,
    claims: Mapping[Digest, WorkClaim],
    counted: Mapping[Group, Mapping[Item, Result]],
    held: Mapping[PeerId, frozenset[Digest]],
    off: frozenset[PeerId] = frozenset(),
) -> RoundState:
    """The round's items: those that no seal covers first, pending claims among them.

    Args:
        state: With the round's number and cursor.
        claims: That the round before hands on.
        counted: The results that they cover.
        held: Who holds their shards.
        off: Who gets no items of it.
    """
    layout = state.terms.layout
    num = min(layout.items_per_round, layout.ordered_items - state.sealed_items)
    issued = frozenset(state.cursor.issue(num))
    own = {group: counted.get(group, {}) for group in state.terms.groups}
    open = OpenRound(issued, own, claims=claims, held=held, off=off, num_issued=num)
    return replace(state, phase=Work(open))


def items_ahead(state: RoundState) -> Sequence[Item]:
    """Items that the next round will have, ascending, if all that counts in this one is merged."""
    layout, open = state.terms.layout, state.open
    if not isinstance(state.phase, Commit | Reduce | Seal) or open is None:
        return ()
    if state.stopping or state.is_idle:
        return ()
    taken = open.issued.union(*(claim.numbers for claim in open.claims.values()))
    left = layout.ordered_items - state.sealed_items - len(taken)
    num = max(0, min(layout.items_per_round, left))
    items = state.cursor.issue(num + len(taken))
    return [item for item in items if item not in taken][:num]


def with_phase(state: RoundState, phase: Phase, at: UnixMillis | None = None) -> RoundState:
    """With another phase, and perhaps at a later moment: what almost every event changes.

    `dataclasses.replace` would set all fields anew one by one, and be half of what an event costs.
    """
    fresh = object.__new__(RoundState)
    fresh.__dict__.update(state.__dict__, phase=phase, at=state.at if at is None else at)
    return fresh


def with_open(state: RoundState, open: OpenRound) -> RoundState:
    """With another open round, in the phase that it is in."""
    assert not isinstance(state.phase, Finished)
    return with_phase(state, replace(state.phase, open=open))


def in_group(state: RoundState, group: Group) -> list[Member]:
    """Members of a group, ascending by id."""
    own = (member for member in state.members.values() if member.group == group)
    return sorted(own, key=lambda member: member.peer)


def can_work(state: RoundState, member: Member, off: Set[PeerId]) -> bool:
    """Whether a member may be given items now."""
    return (
        member.is_here
        and not member.is_leaving
        and state.is_current(member)
        and member.peer not in off
        and state.may(member.peer)
    )
