"""What was emitted in transactions is delivered after them, at least once, in order."""

from collections.abc import Awaitable, Callable

from market.service.ports import UnitOfWork
from market.service.rows import OutboxRow

MAX_ROWS = 500

Deliver = Callable[[list[str]], Awaitable[None]]


async def drain_outbox(work: UnitOfWork, deliver: Deliver) -> int:
    """Deliver topics and forget their rows; returns how many. A failed delivery is repeated."""
    async with work:
        rows = await work[OutboxRow].where(order="sequence", limit=MAX_ROWS, lock=True)
        if rows:
            await deliver(list(dict.fromkeys(row.topic for row in rows)))
        for row in rows:
            await work[OutboxRow].remove(row.sequence)
    return len(rows)
