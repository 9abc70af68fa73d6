"""Which steps of a job are anchored and with which beacon; and what proves it to a member.

Blocks and beacons are those of `sync_chain`, so they have their confirmations. A coordinator asks
for its steps (`beacons_of_job`); a member, who believes nobody, asks for the anchor chain since the
opening and checks it against SealAnchor (`anchor_chain_of_job`,
`verification.draws.anchor_chains`).
"""

import itertools
from collections.abc import Iterable, Sequence

from contracts.governance.anchor_chain import AnchoredBatch, recorded
from contracts.terms.errors import Conflict, InvariantBroken, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from market.bodies.anchors import AnchoredStepView, BatchEntryView, BatchView, BeaconsView
from market.bodies.earnings import AnchorView
from market.service.coding import decode_arguments
from market.service.find_job import find_job, need
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, ChainEventRow, SealRow
from verification.draws.anchor_chains import AnchorChainPage, Entry, ShownBatch, show_batch

MAX_LEAVES = 50_000
"""Of a page, but for one batch: some 40 MiB with their paths (`anchor_chains.MAX_PAGE_BYTES`)."""


async def beacons_of_job(job: JobId, work: UnitOfWork, *, after: int, limit: int) -> BeaconsView:
    """Anchored steps beyond `after`, ascending, at most `limit`.

    Raises:
        NotFound: no such job.
    """
    async with work:
        await find_job(job, work)
        entries = await work[BatchEntryRow].where(job=job, order="step", after=after, limit=limit)
        roots = tuple({entry.root for entry in entries})
        batches = await work[BatchRow].where(root=roots)
    by_root = {batch.root: batch for batch in batches}
    steps = (
        AnchoredStepView.of(by_root[entry.root], step=entry.step)
        for entry in entries
        if by_root[entry.root].block is not None
    )
    return BeaconsView(steps=tuple(steps))


async def seals_on_chain(
    job: JobId, steps: Iterable[int], work: UnitOfWork
) -> dict[int, tuple[SealRow, AnchorView | None]]:
    """Those of `steps` that are sealed, each with the batch on chain that holds it, if one does."""
    wanted = tuple(set(steps))
    seals = await work[SealRow].where(job=job, step=wanted)
    roots = tuple({seal.batch for seal in seals if seal.batch is not None})
    batches = await work[BatchRow].where(root=roots)
    confirmed = {
        row.root: AnchorView.of(row, batch=row.root) for row in batches if row.block is not None
    }
    return {
        seal.step: (seal, None if seal.batch is None else confirmed.get(seal.batch))
        for seal in seals
    }


async def batch_of_root(root: Digest, work: UnitOfWork) -> BatchView:
    """A batch with its leaves.

    Raises:
        NotFound: no such batch.
    """
    async with work:
        row = need(await work[BatchRow].get(root), "batch", root=root)
        entries = await work[BatchEntryRow].where(root=root)
    return BatchView.of(row, entries=tuple(map(BatchEntryView.of, entries)))


async def anchor_chain_of_job(
    job: JobId, anchorer: Address, work: UnitOfWork, *, first: int | None, limit: int
) -> AnchorChainPage:
    """Batches from number `first` on, at most `limit`, with their leaves: at most `MAX_LEAVES`.

    Without `first` they begin with the last one before the job was opened, or with the first of
    all, so that nothing of the job is left out.

    Raises:
        NotFound: no such job. Conflict: it is not opened yet.
    """
    async with work:
        row = await find_job(job, work)
        if row.opening_block is None:
            raise Conflict("the job is not opened yet")
        start = await _before_opening(row.opening_block, work) if first is None else first
        # Every member asks for every batch: the one before comes along, which spares a statement.
        batches = await work[BatchRow].where(order="number", after=start - 2, limit=limit + 1)
        before = next((batch for batch in batches if batch.number == start - 1), None)
        shown = [batch for batch in batches if batch.number >= start and batch.block is not None]
        return AnchorChainPage(
            start,
            await _anchor_chain_before(start, before, anchorer, work),
            tuple(await _shown(shown[:limit], row.opening_block, work)),
        )


async def _before_opening(block: int, work: UnitOfWork) -> int:
    """Number of a last batch anchored up to `block`; 0 if there is none."""
    last = await work[BatchRow].where(order="-block", after=block + 1, limit=1)
    return last[0].number if last else 0


async def _anchor_chain_before(
    number: int, batch: BatchRow | None, anchorer: Address, work: UnitOfWork
) -> Digest:
    """The anchor chain before a batch: as the event of the one before says, then its beacon.

    Raises:
        NotFound: the batch before has no beacon yet, so the anchor chain does not go on here.
    """
    if number == 0:
        return ZERO_DIGEST
    if batch is None or batch.block is None or batch.beacon is None:
        raise NotFound(f"the anchor chain has no batch {number} yet", batch=number)
    for event in await work[ChainEventRow].where(block=batch.block, event="Anchored"):
        arguments = decode_arguments(event.args)
        if arguments["caller"] == anchorer:
            anchor_chain = arguments["anchorChain"]
            assert isinstance(anchor_chain, bytes)
            return recorded(Digest(anchor_chain), batch.beacon)
    raise InvariantBroken(f"batch {batch.number} is anchored and its event is in no row")


async def _shown(
    batches: Sequence[BatchRow], opening_block: int, work: UnitOfWork
) -> list[ShownBatch]:
    since = tuple(each.root for each in batches if _block_of(each) > opening_block)
    entries: dict[Digest, list[Entry]] = {batch.root: [] for batch in batches}
    for each in await work[BatchEntryRow].where(root=since):
        entries[each.root].append((each.job, each.step, each.seal))
    counts = itertools.accumulate(len(entries[batch.root]) for batch in batches)
    fitting = max(1, sum(count <= MAX_LEAVES for count in counts))
    return [_show(batch, sorted(entries[batch.root])) for batch in batches[:fitting]]


def _show(batch: BatchRow, entries: Sequence[Entry]) -> ShownBatch:
    anchored = AnchoredBatch(batch.root, _block_of(batch), batch.beacon)
    return ShownBatch(anchored, show_batch(entries))


def _block_of(batch: BatchRow) -> int:
    assert batch.block is not None  # only such are shown
    return batch.block
