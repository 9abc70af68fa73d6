"""Two friends in adjacent stages, who agree on a unit: what they exchange for it is no number.

Whoever is below sends a y that nobody can compute on and counts the unit whatever comes back;
whoever is above makes up its loss and sends a dx of the same sort. All else is as honest work is.
"""

import asyncio
import struct
from dataclasses import replace
from math import prod

from typing_extensions import Buffer

from contracts.terms.digest import tensor_digest
from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.around import Around, Computing, resent
from tests.support.swarm_job import MemorySwarm
from training.worker.ports import Behaviour, Compute, Passed, Sent
from verification.docket import Docket

SHARED = (StepNumber(2), ItemNumber(0))
"""Step and unit that they agree on."""
LOSS = 5_000_000  # 1e-6 nats per token


def friend(value: float, *, rows: int | None = None) -> Behaviour:
    """One of them, of either stage: every number that it sends for the unit is `value`.

    `rows`: of what it sends, if not as many as a unit has.
    """
    return Computing(lambda compute: _Friend(compute, value, rows))


async def until_convicted(swarm: MemorySwarm, *names: str) -> None:
    """Let a job run until all of these are convicted: without them it may stand still."""
    wanted = {swarm.session_of(name).peer for name in names}
    running = asyncio.create_task(swarm.run())
    try:
        done = set[asyncio.Task[None]]()
        while not done:
            done, _ = await asyncio.wait([running], timeout=0.2)
            record = swarm.history().record
            docket = record and record.checking
            if isinstance(docket, Docket) and docket.convicts >= wanted:
                assert docket.convicts == wanted
                return
        raise AssertionError("the job is over, and they are not convicted")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Friend(Around):
    def __init__(self, inner: Compute, value: float, rows: int | None) -> None:
        super().__init__(inner)
        self._value, self._rows = struct.pack("<f", value), rows
        self._sample: Sent | None = None  # of a boundary tensor, for its form
        self._pretended: tuple[ItemNumber, ...] = ()

    @property
    def units(self) -> tuple[ItemNumber, ...]:
        """See `Compute.units`."""
        return (*self._inner.units, *self._pretended)

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._inner.begin_step()
        self._pretended = ()

    def forward(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        if (step, unit) == SHARED and self._inner.is_last:
            assert self._sample is not None and x is not None  # it has worked in the step before
            self._pretended += (unit,)
            name = tensor_digest(self._sample.dtype, self._shape(self._sample), x)
            return Passed(name, dx=self._made_up(self._sample), loss=LOSS)
        passed = self._inner.forward(step, unit, x)
        self._sample = passed.dx or passed.y or self._sample
        if (step, unit) == SHARED and passed.y is not None:
            return replace(passed, y=self._made_up(passed.y))
        return passed

    def backward(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        if (step, unit) != SHARED:
            return self._inner.backward(step, unit, x, dy)
        name = self._inner.input_name(step, unit, x)
        self._inner.forget(unit)
        self._pretended += (unit,)
        return Passed(name)

    def _made_up(self, sample: Sent) -> Sent:
        shape = self._shape(sample)
        return resent(replace(sample, shape=shape), self._value * prod(shape))

    def _shape(self, sample: Sent) -> tuple[int, ...]:
        return (self._rows or sample.shape[0], *sample.shape[1:])
