"""What is shown of the chain, and of accounts on it and in the ledger."""

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.bodies.market import (
    AccountView,
    ContractsView,
    LedgerEntryView,
    NetworkView,
    StakeView,
    TokenView,
)
from market.domain import ledger
from market.service.account_pay import jobs_of
from market.service.booking import balances_of
from market.service.ports import Chain, Network, UnitOfWork
from market.service.rows import EpochLeafRow, EpochRow, LedgerEntryRow

MAX_ENTRIES = 1000


async def show_network(
    network: Network, chain: Chain, *, version: str, confirmations: int, now: UnixMillis
) -> NetworkView:
    """The chain, as it is seen from here.

    Args:
        network: What the chain said a moment ago.
        chain: Asked for its head.
        version: Of this software.
        confirmations: Blocks after which an event counts.
        now: The market's clock.
    """
    return NetworkView.of(
        network,
        version=version,
        chain_id=chain.domain.chain_id,
        contracts=ContractsView(**network.contracts),
        block=(await chain.head()).number,
        token=TokenView(
            name=network.token_name,
            version=network.token_version,
            symbol=network.token_symbol,
            decimals=network.token_decimals,
            domain_separator=network.token_separator,
        ),
        parameters=dict(network.parameters),
        anchorer=chain.anchorer,
        epoch_seconds=network.parameters["epoch_length"],
        confirmations=confirmations,
        clock=now,
    )


async def show_account(account: Address, chain: Chain, work: UnitOfWork) -> AccountView:
    """What an account has, at the head of the chain and in the ledger."""
    now = await chain.account(account)
    async with work:
        earned, vested = await _earned(account, work)
        # The ledger hears of a claim later than the chain.
        claimable = await _claimable(account, now.claimed, work)
        entries = await _entries(account, work)
    return AccountView.of(
        now,
        account=account,
        stake=StakeView.of(now.stake),
        earned=earned,
        vested=vested,
        claimable=claimable,
        entries=entries,
    )


async def _entries(account: Address, work: UnitOfWork) -> tuple[LedgerEntryView, ...]:
    """Newest entries of everything that an account owns, newest first."""
    owned = [ledger.due(account), ledger.paid(account)]
    for job in await jobs_of(account, work):
        owned += [ledger.earned(job, account), ledger.vested(job, account)]
    entries, names = work[LedgerEntryRow], tuple(owned)
    out = await entries.where(order="-sequence", limit=MAX_ENTRIES, source=names)
    into = await entries.where(order="-sequence", limit=MAX_ENTRIES, target=names)
    rows = {row.sequence: row for row in (*out, *into)}
    newest = [rows[sequence] for sequence in sorted(rows, reverse=True)][:MAX_ENTRIES]
    return tuple(LedgerEntryView.of(row, debit=row.source, credit=row.target) for row in newest)


async def _earned(account: Address, work: UnitOfWork) -> tuple[BaseUnits, BaseUnits]:
    """What an account has earned, and what of it has vested."""
    jobs = await jobs_of(account, work)
    waiting = [ledger.earned(job, account) for job in jobs]
    ripe = [ledger.vested(job, account) for job in jobs]
    settled = [ledger.due(account), ledger.paid(account)]
    balances = await balances_of([*waiting, *ripe, *settled], work)
    vested = sum(balances.get(name, 0) for name in (*ripe, *settled))
    earned = vested + sum(balances.get(name, 0) for name in waiting)
    return BaseUnits(earned), BaseUnits(vested)


async def _claimable(account: Address, claimed: BaseUnits, work: UnitOfWork) -> BaseUnits:
    final = await work[EpochRow].where(state="final", order="-epoch", limit=1)
    if not final:
        return BaseUnits(0)
    leaves = await work[EpochLeafRow].where(epoch=final[0].epoch, account=account)
    name = ledger.paid(account)
    paid = (await balances_of([name], work)).get(name, 0)
    return BaseUnits(max(0, sum(leaf.cumulative for leaf in leaves) - max(paid, claimed)))
