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
from fractions import Fraction
from typing import Any, Literal, Protocol, TypeAlias

from contracts.terms.amounts import Flops
from contracts.terms.chunks import Chunk
from contracts.terms.ids import Address, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.work import Findings, Leaf, Output, WorkClaim

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


@dataclass(frozen=True)
class Layout:
    """How a job is cut: what each group gives to buckets, and how many items a round has."""

    outputs: Mapping[Group, tuple[Bucket, ...]]
    """The bucket of each output of a claim, in their order; peers of the group apply them."""
    items_per_round: int
    ordered_items: int  # of the job
    rows_per_item: int
    gate_exponent: Fraction  # how the norm of what a peer makes goes with its rows

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
class Machine:
    """What a peer computes with."""

    memory_bytes: int
    flops_per_second: int
    bytes_per_second: int  # each way


@dataclass(frozen=True)
class Cost:
    """What a strategy asks of one machine of a group, for `job plan`."""

    item_flops: Flops
    item_bytes: int  # sent and received for an item
    round_bytes: int  # sent and received for what a round exchanges
    memory_bytes: int  # at the fullest moment of a round


class Worker(Protocol):
    """What a strategy may know of a member."""

    @property
    def group(self) -> Group:
        """Whose state it holds."""

    @property
    def owner(self) -> Address:
        """The account that it works for."""

    @property
    def rate(self) -> int:
        """Items per 1e6 seconds, as measured when it joined."""

    @property
    def applied(self) -> RoundNumber:
        """The newest seal that it has applied."""

    @property
    def is_here(self) -> bool:
        """Whether the coordinator has a session with it."""

    @property
    def is_leaving(self) -> bool:
        """Whether it gets no more items."""


@dataclass(frozen=True)
class Router:
    """What the coordinator's router knows and no journal holds."""

    rates: Mapping[PeerId, int] = field(default_factory=dict)
    """Items per 1e6 seconds, as seen lately; whoever is missing here works at `Worker.rate`."""
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
    peers: Mapping[PeerId, Worker]
    off: Set[PeerId]  # get no items in this round
    may_work: Set[PeerId] | None  # None: everybody
    is_dealing: bool = False  # whether items go out
    router: Router = IDLE

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
        worker = self.peers[peer]
        return (
            worker.is_here
            and not worker.is_leaving
            and worker.applied == self.newest
            and peer not in self.off
            and (self.may_work is None or peer in self.may_work)
        )


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

    def cost(self, spec: JobSpec, machine: Machine) -> Cost:
        """What the costliest group asks of a machine. Raises Refused: it cannot hold a state."""

    def assign(self, view: View) -> tuple[Assignment, ...]:
        """What is dealt now; never an item to two peers of a group."""


# -------------------------------------------------------------------------------------- arithmetic

Bytes: TypeAlias = bytes | memoryview
Weights: TypeAlias = Mapping[Digest, int]
"""By claim, as RoundClosed says."""


class State(Protocol):
    """The state of one group after a seal, as the strategy holds it."""

    @property
    def root(self) -> Digest:
        """What claims name as their base."""


class Source(Protocol):
    """Gives what a pass reads, and takes what it makes, by the names of leaves."""

    async def get(self, name: str) -> Any:
        """The tensor of this name. Raises NotFound, Unavailable."""

    def put(self, name: str, tensor: Any) -> Digest:
        """Keep a tensor that was made; its digest as wire bytes."""


@dataclass(frozen=True)
class Shard:
    """What one claim gives to one bucket."""

    claim: Digest
    data: Bytes


@dataclass(frozen=True)
class Draft:
    """What a claim is made of. Shards come bucket by bucket, so that one is in memory at a time."""

    leaves: tuple[Leaf, ...]
    shards: Iterator[tuple[Output, Bytes]]


Compare: TypeAlias = Callable[[str, Any, Any], int]
"""Distance (1e-9) of a claimed from a replayed tensor of this name."""


class Strategy(PureStrategy, Protocol):
    """Rules and arithmetic. One thread, one call at a time; bytes are named by digest."""

    def start(self, state: State, round: RoundNumber) -> None:
        """Forget all but the sealed state."""

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """One pass of an item; the leaf at the end of `backward` and `whole`."""

    def commit(self, items: Items) -> Draft:
        """What the peer claims of exactly these items. Raises Refused: others are in."""

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Bytes:
        """The weighted mean of one bucket, exact; shards come in the order of claims."""

    def apply(self, state: State, buckets: Iterator[Bytes], seal: Seal) -> State:
        """The state after a seal, exact, bucket by bucket."""

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        beacon: bytes,
        compare: Compare,
    ) -> Findings:
        """What an audit of a claim of work finds."""
