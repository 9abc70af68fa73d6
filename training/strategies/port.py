"""What a strategy is to everything that runs it: its pure rules, and its arithmetic.

Coordinator and worker know groups, items, buckets and bytes by digest; what a group is, how an item
is computed and how a bucket is reduced are the strategy's. A group is a set of peers that hold
equal state. An item is the unit of data, numbered over the job. A bucket is a part of what is
exchanged: the peers of one group reduce it, those of one or two groups apply it.

The rules hold no torch, clock or randomness. Of the arithmetic, one thread calls one method at a
time. Units: milliseconds, bytes, FLOPs; rates in items per 1e6 seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from contracts.terms.chunks import Chunk
from contracts.terms.errors import Refused
from contracts.terms.ids import Address, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.work import Leaf, Output, WorkClaim
from training.stages.torch_free import StateRoots

Group: TypeAlias = StageIndex
Bucket: TypeAlias = Chunk
"""The group whose peers reduce it, and its number there."""
Item: TypeAlias = ItemNumber
Items: TypeAlias = frozenset[ItemNumber]
RoundNumber: TypeAlias = StepNumber

Direction: TypeAlias = Literal["forward", "backward", "whole", "evaluate"]
Decision: TypeAlias = Literal["wait", "reopen", "close", "void"]


# ------------------------------------------------------------------------------------------ values


@dataclass(frozen=True)
class Result:
    """One item in one group: by whom, and which tensors went in and came out."""

    group: Group
    item: Item
    peer: PeerId
    tensors: tuple[tuple[str, Digest], ...] = ()  # by the names that a leaf gives them
    loss: int | None = None  # 1e-6 nats per token, where the group has one
    given: bool = False
    """Whether `tensors` are those that the neighbours used, made by a peer that is gone."""

    def tensor(self, name: str) -> Digest | None:
        """Digest of a tensor of this name."""
        return next((digest for each, digest in self.tensors if each == name), None)


@dataclass(frozen=True)
class Layout:
    """How a job is cut: what each group gives to buckets, and how many items a round has."""

    outputs: Mapping[Group, tuple[Bucket, ...]]
    """The bucket of each output of a claim, in their order; peers of the group apply them."""
    items_per_round: int
    ordered_items: int  # of the job
    num_vectors: int = 1  # that a claim's outputs cut alike, each with a norm for the gate
    norms_grow: bool = False  # with the samples of a claim; see `contracts.governance.gates`
    most_items: int | None = None
    """Of a peer in a round, whatever its speed; None: its share by speed."""
    merges_late: bool = False
    """Whether claims that are delivered too late are merged in the round after theirs."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, ascending."""
        return tuple(self.outputs)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every bucket once, ascending: the order of `RoundClosed.reducers`."""
        return tuple(sorted({bucket for own in self.outputs.values() for bucket in own}))

    def reduced_in(self, group: Group) -> tuple[Bucket, ...]:
        """Buckets that the peers of a group reduce."""
        return tuple(bucket for bucket in self.outputs[group] if bucket[0] == group)


@dataclass(frozen=True)
class Member:
    """A peer with a sealed or soon to be sealed join notice."""

    peer: PeerId
    group: Group
    address: str  # where it can be dialled; empty: through the coordinator
    applied: RoundNumber  # the newest round whose seal it has applied; 0 before the first
    owner: Address  # the account of its lease: several peers of one account count as one owner
    rate: int  # items per 1e6 seconds, measured when it joined
    bandwidth: int  # bytes per second, its own word
    lost_at: UnixMillis | None = None  # since when its session is gone; None while it is here
    redo_at: UnixMillis | None = None  # when others take over what it has not claimed
    leaves_by: UnixMillis | None = None  # at the latest, as far as nobody needs it; None: it stays

    @property
    def is_here(self) -> bool:
        """Whether the coordinator has a session with it."""
        return self.lost_at is None

    @property
    def is_leaving(self) -> bool:
        """Whether it gets no more items, and leaves when none of its work is open."""
        return self.leaves_by is not None


@dataclass(frozen=True)
class Router:
    """What the coordinator's router knows and no journal holds."""

    rates: Mapping[PeerId, int] = field(default_factory=dict)
    """Items per 1e6 seconds, as seen lately; whoever is missing here works at `Member.rate`."""
    caps: Mapping[PeerId, int] = field(default_factory=dict)
    """Items that a peer may be given in this round; whoever is missing here: any number."""
    room: Mapping[PeerId, int] = field(default_factory=dict)
    """Further items that a peer can take on now; whoever is missing here: none."""
    dealt: Mapping[Group, Mapping[Item, PeerId]] = field(default_factory=dict)
    """Items that are out: each with one peer of a group at a time."""


IDLE = Router()


@dataclass(frozen=True)
class View:
    """One round as a strategy sees it, while items are worked on or claims come in."""

    phase: Literal["work", "commit"]
    newest: RoundNumber  # the seal whose state the round starts from
    now: UnixMillis
    ends: UnixMillis | None  # of work, of the claims, or of delivery; None: nothing began
    extended: bool  # whether `ends` is the second one: nothing new is begun any more
    issued: Items
    counted: Mapping[Group, Mapping[Item, Result]]  # of every group
    missing: Set[PeerId]  # with results that they have not claimed
    claims: Mapping[Digest, WorkClaim]  # that are stored
    delivered: Set[Digest]  # of the claims; complete when all are, or time is over
    peers: Mapping[PeerId, Member]
    off: Set[PeerId]  # get no items in this round
    may_work: Set[PeerId] | None  # None: everybody
    is_dealing: bool = False  # whether items go out
    router: Router = IDLE
    num_issued: int = 0
    """Items that the round began with; while claims come in, `issued` are those that are left."""
    late: Set[Digest] = frozenset()
    """Claims that started from the state before the newest one: see `Layout.merges_late`."""

    def open(self, group: Group) -> Items:
        """Issued items that do not count in a group yet."""
        return self.issued.difference(self.counted[group])

    def begun(self) -> Items:
        """Items that count in some group."""
        return frozenset().union(*self.counted.values())

    def complete(self) -> Items:
        """Items that count in every group."""
        return self.issued.intersection(*self.counted.values())

    def can_work(self, peer: PeerId) -> bool:
        """Whether a member may be given items now."""
        return self.peers[peer].is_here and self._is_current(peer)

    def may_be_back(self, peer: PeerId) -> bool:
        """Whether a member is away, and not yet for long enough that others do its work."""
        redo_at = self.peers[peer].redo_at
        return redo_at is not None and self.now < redo_at and self._is_current(peer)

    def _is_current(self, peer: PeerId) -> bool:
        return self.peers[peer].applied == self.newest and self.has_a_place(peer)

    def has_a_place(self, peer: PeerId) -> bool:
        """Whether a member may be given items, once it has the newest state."""
        is_allowed = self.may_work is None or peer in self.may_work
        return not self.peers[peer].is_leaving and peer not in self.off and is_allowed


@dataclass(frozen=True)
class Assignment:
    """Items that a peer is given."""

    peer: PeerId
    group: Group
    items: tuple[Item, ...]


class Closing(Protocol):
    """The one rule that the round machine asks."""

    def closes(self, view: View) -> Decision:
        """What is to become of the phase.

        While items are worked on: `close` ends it, and what is not complete leaves the round;
        `void` gives the round up. While claims come in: `close` merges what is delivered; `reopen`
        lets others do again what was not claimed or not delivered; `void` as above. `wait` changes
        nothing, but at the end of a phase: once more as long, then void.
        """


class PureStrategy(Closing, Protocol):
    """The rules: no torch, clock or randomness."""

    def layout(self, spec: JobSpec) -> Layout:
        """How a job is cut."""

    def assign(self, view: View) -> tuple[Assignment, ...]:
        """What is dealt now; never an item to two peers of a group."""


# -------------------------------------------------------------------------------------- arithmetic

T = TypeVar("T")

Weights: TypeAlias = Mapping[Digest, tuple[Group, int]]
"""Of each claim that a bucket is made of, `in_peer_order`: its group, its weight in RoundClosed."""


class Compute(Protocol):
    """Runs arithmetic where it may take long: on the one thread that computes."""

    async def __call__(self, function: Callable[[], T]) -> T:
        """What `function` returns; raises what it raises."""


class State(Protocol):
    """The state of one group after a seal, and its files. Not thread-safe, but for `checkpoint`.

    Equal states make equal files, so newcomers and auditors take pieces of one from several
    members. A method that writes raises Unavailable: the disk is full or cannot be written.
    """

    @property
    def group(self) -> Group:
        """Whose state it is."""

    def roots(self) -> StateRoots:
        """Its digests; `roots().state` is what claims name as their base."""

    def measure(self, seed: int) -> None:
        """Compute one reference item of seeded numbers; changes nothing."""

    def save(self, folder: Path, round: RoundNumber) -> None:
        """Keep it as the state after `round`, whole or not at all; the one before is kept too."""

    def restore(self, folder: Path) -> RoundNumber:
        """Load the newest state that is whole, and say whose; if there is none: 0, no change."""

    def adopt(self, folder: Path, round: RoundNumber, file: Path, root: Digest | None) -> None:
        """Take over a checkpoint that came from others, and keep it: `file` moves into `folder`.

        Args:
            folder: Where checkpoints are kept.
            round: Whose state it is.
            file: What came.
            root: That a seal names; None while there is no such seal yet.

        Raises:
            WrongBytes: its root is another. Malformed, UnknownVersion: no checkpoint of this group
                and round.
        """

    def checkpoint(self, folder: Path, round: RoundNumber) -> Path:
        """File of the state after `round`; raises NotFound."""

    def oldest_kept(self, folder: Path) -> RoundNumber:
        """Round of the older of two states in `folder`, else 0: buckets since are needed.

        Beside one checkpoint the initial state counts: who joins before all have the first one
        begins with it.
        """

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """Keep what replays of the next round are computed on, whole or not at all.

        `roots` are those of the present state.
        """

    def roots_of_weights(self, file: Path) -> StateRoots:
        """What such a file says of its state; compares nothing. Raises NotFound, Malformed."""


BASE = "base"
"""What a replay calls the file of weights (a Path) that its claim was computed on."""


def shard_name(bucket: int) -> str:
    """What a replay calls the claimed shard of the group's bucket with this number."""
    return f"shard/{bucket}"


def validation_name(item: Item) -> str:
    """What an evaluation calls its rows; `item` is the number of a set of them."""
    return f"validation/{item}"


class Source(Protocol):
    """Gives what a pass reads, and takes what it makes, by the names of leaves.

    Boundary tensors are `contracts.terms.digest.formed_tensor`: what their digests are taken of.
    Rows are the bytes of an item's rows, one after another. A replay also asks for `BASE` and for
    shards, as they travel. What is given has the digest that it was asked for by.
    """

    def digest(self, name: str) -> Digest:
        """The digest that a boundary tensor is asked for by."""

    async def get(self, name: str) -> Any:
        """What has this name. Raises NotFound, Unavailable, Misbehaved."""

    def put(self, name: str, data: bytes) -> Digest:
        """Keep a boundary tensor that was made; called where it computes. Raises Unavailable."""


@dataclass(frozen=True)
class Shard:
    """What one claim gives to one bucket."""

    claim: Digest
    data: Buffer


def in_turn(shards: Iterator[Shard], weights: Weights) -> Iterator[Buffer]:
    """The bytes of shards that come in the order of `weights`; raises Refused: one does not."""
    claims = list(weights)
    for place, shard in enumerate(shards):
        if claims[place : place + 1] != [shard.claim]:
            raise Refused("a shard is not of the claim whose turn it is")
        yield shard.data


Piece: TypeAlias = tuple[Output, bytes]
"""A shard or a bucket as it travels, and what a claim says of it."""


@dataclass(frozen=True)
class Draft:
    """What a claim is made of. Shards come bucket by bucket, so that one is in memory at a time.

    They are made as they are asked for: before the next `start`.
    """

    leaves: tuple[Leaf, ...]  # items ascend
    shards: Iterator[Piece]


class Comparison(Protocol):
    """Takes note of how far tensors lie apart, whatever it measures."""

    def add(self, kind: str, claimed: Any, replayed: Any) -> None:
        """Compare a tensor of this kind, of one item."""

    def add_gradient(self, claimed: Mapping[str, Any], replayed: Mapping[str, Any]) -> None:
        """Compare a gradient parameter by parameter, all of a group at once."""


@dataclass(frozen=True)
class Replayed:
    """What a replay came to, beside what it gave to the comparison."""

    projections: tuple[int, ...]  # 1e-6, of the gradient after each item
    is_computable: bool
    """Whether each item can be computed from what its leaf names: honest peers claim no other."""


class Strategy(PureStrategy, Protocol):
    """Rules and arithmetic of one job. Not thread-safe: one call at a time.

    `run` and `replay` are for the event loop: they wait for `Source`, and compute by `Compute`. All
    others compute, and are for its thread.
    """

    def first_state(self, group: Group) -> State:
        """The state that the job starts from.

        Raises:
            Refused: no such group. NotFound, ServiceUnreachable, WrongBytes, Malformed, NotFinite:
                the weights that the JobSpec names.
        """

    def start(self, state: State, round: RoundNumber) -> None:
        """Forget all but the sealed state, in which items of `round` are computed from now on.

        What was computed ahead of it stays in (`leaves`), where the strategy lets a peer do so.
        """

    def start_ahead(self, items: Items) -> None:
        """Have these computed, after `start`, as they were ahead of the round.

        Raises:
            Refused: in this job nothing is.
        """

    def leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the items that are in, in the order in which they were run."""

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """One pass of an item; the leaf at the end of `backward`, `whole` and an `evaluate` that
        has a loss. An error leaves the item out; other items may have to be run again, too.

        Raises:
            NotFinite: inf or nan. Malformed: what came in is not of the form that the JobSpec says.
            Refused: the item is in already, or the group has no such pass.
            Unavailable: the device failed, or is full. Whatever `source` raises.
        """

    def keep(self, file: Path) -> None:
        """Write the items that are in, where it would take long to run them again.

        Raises:
            Unavailable: the disk is full or cannot be written; a file from before stays.
        """

    def resume(self, file: Path) -> tuple[Leaf, ...]:
        """After `start`, have those items in that `keep` has written of this round and state.

        Returns:
            Their leaves, in the order in which they were run; none if there is no such file.
        """

    def commit(self, items: Items) -> Draft:
        """What the peer claims of exactly these items. Raises Refused: others are in."""

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """The weighted mean of one bucket, exact; one shard at a time, in the order of `weights`.

        Raises:
            Malformed: shards of different lengths. NotFinite: inf or nan. Refused: not the shards
                that `weights` says, or weights that make no mean.
        """

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> State:
        """The state after a seal, exact, bucket by bucket; the one before is used up.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan. Then it is half changed.
        """

    def need_weights(self, file: Path, group: Group, base: Digest) -> None:
        """Refuse a file of weights that are not of the state of a group with this root.

        Raises:
            WrongBytes: they are of another one. NotFound, Malformed, UnknownVersion: they are gone,
                or of another group, or damaged.
        """

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """Do a claim of work again and compare; the work of this peer is not touched.

        Args:
            claim: What is replayed.
            leaves: Of the claim.
            source: By the digests that claim and leaves name, so that only these are held against
                the claim.
            seed: Of the projections, 32 bytes.
            comparison: Takes claimed and replayed tensors.

        Raises:
            WrongBytes: the weights are of another state than the base. Whatever `source` raises.
        """
