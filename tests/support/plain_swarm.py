"""What a job of `CountingStrategy` comes to without a swarm: one peer a stage, one loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.terms.ids import Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from tests.support.fakes.counting import CountingState, CountingStrategy, rows_for
from tests.support.fakes.memory_source import MemorySource, at_once, ended, make_seal
from training.stages.torch_free import num_groups


@dataclass
class PlainRun:
    """Roots of the state of each stage after the last round; losses by round, 1e-6."""

    states: list[Digest] = field(default_factory=list)
    losses: dict[int, int] = field(default_factory=dict)
    validation: dict[int, int] = field(default_factory=dict)


def plain_run(spec: JobSpec, updates: Sequence[Sequence[ItemNumber]] | None = None) -> PlainRun:
    """Updates of these items, in order, and the validation that is due.

    By default each has the next items, as many as a round has.
    """
    batch, run, line = spec.batch, PlainRun(), _Line(spec)
    if updates is None:
        size = batch.units_per_step
        all_of_them = [*map(ItemNumber, range(batch.steps * size))]
        updates = [all_of_them[first : first + size] for first in all_of_them[::size]]
    for step, items in enumerate(updates, start=1):
        line.start(step)
        run.losses[step] = _mean([line.loss(item) for item in items])
        line.update(step, items)
        line.start(step + 1)
        if step % batch.validate_every == 0 or step == len(updates):
            groups = map(ItemNumber, range(num_groups(batch.rows_per_unit)))
            run.validation[step] = _mean([line.loss(group, evaluates=True) for group in groups])
    run.states = [state.roots().state for _, state in line.peers]
    return run


class _Line:
    def __init__(self, spec: JobSpec) -> None:
        self._source = MemorySource(rows_for(spec))
        self.peers: list[tuple[CountingStrategy, CountingState]] = []
        for stage in map(StageIndex, range(spec.batch.stages)):
            strategy = CountingStrategy(spec, at_once)
            self.peers.append((strategy, strategy.first_state(stage)))

    def start(self, step: int) -> None:
        """A round begins."""
        for strategy, state in self.peers:
            strategy.start(state, StepNumber(step))

    def loss(self, item: ItemNumber, *, evaluates: bool = False) -> int:
        """The loss of an item, which also goes back down unless it is evaluated."""
        *others, (last, _) = self.peers
        for strategy, _ in others:
            ended(strategy.run(item, "evaluate" if evaluates else "forward", self._source))
        leaf = ended(last.run(item, "evaluate" if evaluates else "whole", self._source))
        for strategy, _ in [] if evaluates else reversed(others):
            ended(strategy.run(item, "backward", self._source))
        assert leaf is not None
        return leaf.numbers[0]

    def update(self, step: int, items: Sequence[ItemNumber]) -> None:
        """One peer a stage: its shards are the means."""
        for strategy, state in self.peers:
            shards = [data for _, data in strategy.commit(frozenset(items)).shards]
            strategy.apply(state, iter(shards), make_seal(step, norm=1))


def _mean(losses: list[int]) -> int:
    return (2 * sum(losses) + len(losses)) // (2 * len(losses))
