"""What the router remembers: items on their way, tasks that peers have, and how peers do. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.terms.ids import PeerId
from training.coordinator.throughput import Throughput
from training.rounds.state import NO_ROUND
from training.strategies.every_step.passes import Call, Way
from training.strategies.port import Group, Item, Items, Result, RoundNumber, View
from training.transport.calls import Task, TaskName

MOST_BLAME = 3  # complaints in a round
WEIGHT_OF_ITEM = 3  # of its passes together


@dataclass(frozen=True)
class Round:
    """How the round stands, as far as it matters here."""

    number: RoundNumber
    view: View | None = None  # None: nothing is worked on
    unclaimed: Mapping[PeerId, Items] = field(default_factory=dict)
    may_lack: bool = False  # whether who comes back without a result has lost it
    here: Mapping[PeerId, Group] = field(default_factory=dict)  # may end what they have begun
    caps: Mapping[PeerId, int] = field(default_factory=dict)  # absent: none of the round's items
    validate_after: RoundNumber = NO_ROUND  # none: no validation is due
    row_weights: tuple[int, ...] = ()  # of each group of validation rows


@dataclass(eq=False)
class Walk:
    """An item, or a group of validation rows, on its way."""

    way: Way
    call: Call | None = None
    out: "Out | None" = None
    lacking: list[PeerId] = field(default_factory=list)  # cannot get an input of this pass
    failed: list[PeerId] = field(default_factory=list)  # failed this pass for another reason
    tries: int = 0  # for a tensor that only a result that counts can have
    failures: int = 0
    late: int = 0  # deadlines that have passed

    @property
    def name(self) -> tuple[Item, bool]:
        """Its place among all that are on their way."""
        return self.way.item, self.way.evaluates


@dataclass(eq=False)
class Out:
    """A task that a peer has, or is about to hear of."""

    walk: Walk
    peer: PeerId
    task: Task
    group: Group
    began: float
    is_dropped: bool = False
    is_told: bool = False  # that it is dropped


@dataclass
class Peer:
    """What is known of one peer beside what it has."""

    speed: Throughput
    failures: int = 0  # since it last made something
    rests_until: float = 0.0
    blamed: list[PeerId] = field(default_factory=list)  # by whom, for tensors of no use

    @property
    def is_useless(self) -> bool:
        """Whether it makes what nobody can use, so that it is asked last in this round.

        What one receiver says alone may be its own fault.
        """
        return len(self.blamed) >= MOST_BLAME and len(set(self.blamed)) > 1


def done_of(view: View, item: Item) -> dict[Group, Result]:
    """What counts of an item."""
    return {group: own[item] for group, own in view.counted.items() if item in own}


def name_of(about: TaskName) -> TaskName:
    """The name alone of a task, a result or a failure."""
    return TaskName(direction=about.direction, round=about.round, item=about.item)


def rate_of(speed: Throughput) -> int:
    """Items per 1e6 seconds."""
    return max(1, int(speed.samples_per_second * 10**6 / WEIGHT_OF_ITEM))
