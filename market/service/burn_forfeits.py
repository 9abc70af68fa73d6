"""What convicts lost is paid to the account that nobody has: so it leaves the vault like other pay.

Anyone may claim for anyone; for `FORFEITED` the market does, as it has no owner to do it.
"""

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest
from contracts.terms.merkle import FORFEITED
from market.domain import ledger
from market.service.booking import balances_of
from market.service.ports import Chain, UnitOfWork
from market.service.rows import EpochRow
from market.service.settle_epoch import load_settlement


async def burn_forfeits(work: UnitOfWork, chain: Chain) -> Digest | None:
    """Claim what the newest epoch grants to `FORFEITED`, if it is final. Safe to repeat.

    Returns:
        The transaction that was sent; None if there is nothing to claim now.
    """
    async with work:
        newest = await work[EpochRow].where(order="-epoch", limit=1)
        if not newest or newest[0].state != "final":
            return None
        settlement = await load_settlement(work, newest[0].epoch)
        name = ledger.paid(FORFEITED)
        claimed = (await balances_of([name], work)).get(name, 0)
    try:
        leaf, proof = settlement.claim_proof(FORFEITED)
    except NotFound:
        return None
    if leaf.cumulative <= claimed:
        return None
    return await chain.pay_out(leaf, proof)
