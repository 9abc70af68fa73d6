"""Are the rows of the escrow's money what its events say, and what the chain holds?

Rows are compared with a new fold of all stored events, and with what the contract stores in the
block up to which events were read: so a difference is a bug of ours, or money that moved without an
event, never a delay.
"""

from contracts.governance.escrow import differences
from contracts.terms.errors import ChainForgot, InvariantBroken
from market.service.money import known_state, rebuilt_differences
from market.service.ports import Chain, UnitOfWork
from market.service.rows import CursorRow

SHOWN = 10


async def reconcile(work: UnitOfWork, chain: Chain) -> int:
    """Compare all rows; returns how many there are, 0 if events came meanwhile.

    Raises:
        InvariantBroken: something differs.
    """
    announce = (await chain.times()).announce
    async with work:
        before = await work[CursorRow].where(order="-block", limit=1)
        known = await known_state(announce, work)
        found = [f"by events: {each}" for each in await rebuilt_differences(announce, work)]
        after = await work[CursorRow].where(order="-block", limit=1)
    if not before or before != after:
        return 0
    block = await chain.block(before[0].block)
    if block is not None and block.hash == before[0].hash:
        try:
            stored = await chain.escrow_state(known, block)
            found += [f"by the chain: {each}" for each in differences(known, stored)]
        except ChainForgot:
            pass  # the node keeps no state of that block; the next one is newer
    if found:
        raise InvariantBroken(f"money: {len(found)} differences: {'; '.join(found[:SHOWN])}")
    return len(known.balances) + len(known.budgets) + len(known.channels)
