"""Binding ourselves to the units that a StepClose gives us (docs/protocol.md 3.3).

Invariants
- Disk first, then the journal, then the network; the same question gets the same answer.
- A gradient that is bound holds the units of its GradCommit and no other, each as the copy that
  its leaf names.
- In a job of one stage its bytes depend on those units alone: they are added in ascending order,
  and again from nothing when they came in another order or with others. With several stages the
  order is that of arrival, and a copy that does not count is subtracted.
"""

from collections.abc import Iterable
from functools import partial

from contracts.terms.errors import Misbehaved, NotFound, Unavailable
from contracts.terms.history import Leaves, unit_leaves_root
from contracts.terms.ids import ChunkIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradCommit, PartDigest, StepClose, UnitLeaf
from contracts.terms.signatures import Signed, verify_session
from training.averaging.slices import Slice
from training.swarm.step import assigned_units
from training.worker.book import OwnCommit
from training.worker.ports import HONEST, Behaviour
from training.worker.station import Station
from training.worker.turns import Rank
from training.worker.units import Units


class Commits:
    """Our GradCommits of the step in work."""

    def __init__(self, station: Station, units: Units, behaviour: Behaviour = HONEST) -> None:
        self._at, self._units, self._behaviour = station, units, behaviour

    async def commit(self, close: Signed[StepClose]) -> tuple[ItemNumber, ...] | list[OwnCommit]:
        """Bind ourselves to the units that a StepClose gives us, or say which we lack.

        Raises:
            BadSignature: not the coordinator's. Unavailable, Conflict: of another step.
        """
        verify_session(close, self._at.book.record.opening.session_key)
        return await self._at.engine.at(Rank.STEP, lambda: self._commit(close.message))

    async def _commit(self, close: StepClose) -> tuple[ItemNumber, ...] | list[OwnCommit]:
        self._at.need_step(close.step)
        given = assigned_units(close, self._at.stage, self._at.peer)
        owed = tuple(unit for unit in given if unit not in self._at.book.committed())
        if lacked := tuple(unit for unit in owed if unit not in self._units.complete()):
            return lacked
        if owed:
            if lost := await self._gather(close.step, owed):
                return lost
            try:
                await self._bind(close, owed)
            except Unavailable as error:  # a full disk: others do them at once, not at a deadline
                self._at.tell("not_bound", step=close.step, reason=error.message)
                for unit in owed:
                    self._units.forget(unit)
                return owed
        return [commit for commit in self._at.book.commits if commit.units <= set(given)]

    async def _gather(
        self, step: StepNumber, units: tuple[ItemNumber, ...]
    ) -> tuple[ItemNumber, ...]:
        """Have exactly these units in the gradient; returns those whose tensors are lost."""
        compute = self._at.compute
        if self._at.batch.stages == 1:
            if compute.units != units:
                await self._at.engine.run(compute.begin_step)
        else:
            for unit in set(compute.units) - set(units):
                await self._units.subtract(step, unit)
        lost = []
        for unit in units:
            try:
                await self._units.count(step, unit)
            except (NotFound, Unavailable, Misbehaved) as error:
                self._at.tell("unit_lost", step=step, unit=unit, reason=error.message)
                self._units.forget(unit)
                lost.append(unit)
        return tuple(lost)

    async def _bind(self, close: StepClose, units: tuple[ItemNumber, ...]) -> None:
        gather = partial(self._behaviour.parts, self._at.compute, close.step)
        slices = await self._at.engine.run(gather)
        leaves = tuple(self._units.leaf(unit) for unit in units)
        message = self._grad_commit(close, leaves, slices)
        parts = [piece.data for piece in slices]
        bind = partial(self._at.store.bind_parts, close.step, message.digest(), parts)
        await self._at.engine.run_io(bind)
        own = OwnCommit(self._at.session.sign(message), Leaves(message.digest(), leaves))
        self._at.book.keep_commit(own)
        await self._at.engine.run(self._at.compute.begin_step)  # a further round starts empty
        self._at.tell(
            "grad_commit_stored",
            step=close.step,
            stage=self._at.stage,
            round=message.round,
            units=len(units),
        )

    def _grad_commit(
        self, close: StepClose, leaves: tuple[UnitLeaf, ...], slices: Iterable[Slice]
    ) -> GradCommit:
        record = self._at.book.record
        return GradCommit(
            job=record.job,
            step=close.step,
            round=len(self._at.book.commits),
            stage=self._at.stage,
            peer=self._at.peer,
            step_close=close.digest(),
            previous_seal=record.previous,
            state_root=self._at.roots.state,
            units_root=unit_leaves_root(leaves),
            num_units=len(leaves),
            num_samples=len(leaves) * record.spec.batch.rows_per_unit,
            parts=tuple(
                PartDigest(
                    chunk=ChunkIndex(chunk), digest=piece.digest, norm_squared=piece.norm_squared
                )
                for chunk, piece in enumerate(slices)
            ),
            reports=self._at.book.unsealed_reports(),
        )
