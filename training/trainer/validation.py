"""The loss on validation rows: groups of them go up through the stages, nothing comes back down.

Groups are of equal size, so the mean of their losses is the mean over all rows. Losses in 1e-6 nats
per token. A group that fails is sent again from the beginning, a few times: how well a model does
is worth knowing, and not worth stopping a job for.
"""

import asyncio

from contracts.terms.errors import TallystickError
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from training.trainer.calling import FIRST_PAUSE, Calling, Pause
from training.transport.calls import Held

AT_A_TIME = 4  # groups
MAX_TRIES = 5


async def validation_loss(
    calling: Calling, step: StepNumber, num_groups: int, pause: Pause
) -> int | None:
    """Mean loss over all groups in the state after `step`; None: it failed."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(group: ItemNumber) -> int | None:
        async with room:
            return await _group_loss(calling, step, group, pause)

    found = await asyncio.gather(*(one(ItemNumber(group)) for group in range(num_groups)))
    losses = [loss for loss in found if loss is not None]
    if not losses or len(losses) < num_groups:
        return None
    return (2 * sum(losses) + num_groups) // (2 * num_groups)  # halves up


async def _group_loss(
    calling: Calling, step: StepNumber, group: ItemNumber, pause: Pause
) -> int | None:
    for tries in range(MAX_TRIES):
        try:
            return await _through_the_stages(calling, step, group)
        except TallystickError:  # it is told where it happens
            await pause(FIRST_PAUSE * 2**tries)
    return None


async def _through_the_stages(calling: Calling, step: StepNumber, group: ItemNumber) -> int:
    stage, x = 0, None
    while True:
        peer, computed = await calling.evaluate(step, group, StageIndex(stage), x)
        if computed.loss is not None:
            return computed.loss
        stage, x = stage + 1, Held(digest=computed.y, holders=(peer,))
