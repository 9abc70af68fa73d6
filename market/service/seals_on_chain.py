"""Seals of a job by step, each with the batch on chain that holds it."""

from collections.abc import Iterable

from contracts.terms.ids import JobId
from market.bodies.earnings import AnchorView
from market.service.ports import UnitOfWork
from market.service.rows import BatchRow, SealRow


async def seals_on_chain(
    job: JobId, steps: Iterable[int], work: UnitOfWork
) -> dict[int, tuple[SealRow, AnchorView | None]]:
    """Those of `steps` that are sealed; without an anchor while no batch is confirmed on chain."""
    wanted = tuple(set(steps))
    seals = await work[SealRow].where(job=job, step=wanted) if wanted else []
    roots = tuple({seal.batch for seal in seals if seal.batch is not None})
    batches = await work[BatchRow].where(root=roots) if roots else []
    confirmed = {
        row.root: AnchorView.of(row, batch=row.root) for row in batches if row.block is not None
    }
    return {
        seal.step: (seal, None if seal.batch is None else confirmed.get(seal.batch))
        for seal in seals
    }
