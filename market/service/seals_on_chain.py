"""Seals of a job by step, each with the batch on chain that holds it."""

from collections.abc import Iterable

from contracts.terms.ids import JobId
from market.service.ports import UnitOfWork
from market.service.rows import BatchRow, SealRow


async def seals_on_chain(
    job: JobId, steps: Iterable[int], work: UnitOfWork
) -> dict[int, tuple[SealRow, BatchRow | None]]:
    """Those of `steps` that are sealed; without a batch while none is confirmed on chain."""
    wanted = tuple(set(steps))
    seals = await work[SealRow].where(job=job, step=wanted) if wanted else []
    roots = tuple({seal.batch for seal in seals if seal.batch is not None})
    batches = await work[BatchRow].where(root=roots) if roots else []
    confirmed = {batch.root: batch for batch in batches if batch.block is not None}
    return {
        seal.step: (seal, None if seal.batch is None else confirmed.get(seal.batch))
        for seal in seals
    }
