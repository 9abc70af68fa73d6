"""Gas and test tokens for newcomers, on an embedded chain only, a few times per account."""

from dataclasses import replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused, Forbidden
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.service.ports import Chain, UnitOfWork
from market.service.rows import FaucetRow

GIVEN = "given"
"""What who waits for a grant is woken by."""


async def ask_faucet(
    account: Address,
    *,
    gas: int,
    tokens: BaseUnits,
    max_grants: int,
    now: UnixMillis,
    work: UnitOfWork,
) -> FaucetRow:
    """Note that an account asks; a grant that is still on its way is the same ask.

    Raises:
        Forbidden: it has had all it gets.
    """
    async with work:
        grants = await work[FaucetRow].where(account=account, order="number")
        if grants and grants[-1].state == "asked":
            return grants[-1]
        if len(grants) >= max_grants:
            raise Forbidden(
                f"the faucet gave this account {len(grants)} times, which is all it gives",
                account=account.hex(),
            )
        row = FaucetRow(account, len(grants), now, gas, tokens)
        await work[FaucetRow].add(row)
    return row


async def give_faucet(work: UnitOfWork, chain: Chain) -> int:
    """Send what was asked; returns to how many. Safe to repeat."""
    async with work:
        asked = await work[FaucetRow].where(state="asked")
    for row in asked:
        try:
            gas, tokens = await chain.give(row.account, row.number, row.gas, row.tokens)
            after = replace(row, state="given", gas_transaction=gas, token_transaction=tokens)
        except ContractRefused as refusal:
            after = replace(row, state="refused", refusal=refusal.message)
        async with work:
            await work[FaucetRow].put(after)
            work.wake(GIVEN)
    return len(asked)
