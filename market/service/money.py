"""Balances, budgets, limits and stakes of jobs, as the escrow's confirmed events tell them.

The rows are the fold of `contracts.governance.escrow` over those events, and nobody else writes
them: so they can be made again from the chain alone, and `rebuilt_differences` names each that is
not what the events make of it. When the chain went back, all of them are made again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contracts.governance.escrow import (
    BURN,
    Budget,
    Channel,
    EscrowState,
    FundingTerms,
    differences,
)
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from market.service.coding import decode_arguments, wide
from market.service.ports import UnitOfWork
from market.service.rows import BudgetRow, ChainEventRow, FreeMoneyRow, LimitRow

CONTRACT = "escrow"
"""Under which the events of the escrow are stored."""


async def apply_money(
    events: Sequence[ChainEventRow], announce_seconds: int, work: UnitOfWork
) -> None:
    """Change the rows as new events say; they come in the order of the chain.

    Args:
        events: Of the escrow; those of other contracts are passed over.
        announce_seconds: ANNOUNCE of the contract.
        work: The transaction that stores the events too.
    """
    ours = _ours(events)
    accounts, jobs, channels = _touched(ours)
    state = EscrowState(announce_seconds)
    for job in sorted(jobs):  # jobs before accounts, as all who hold both
        if (row := await work[BudgetRow].lock(job)) is not None:
            _take_budget(row, state)
    for job, account in sorted(channels):
        if (limit := await work[LimitRow].lock(job, account)) is not None:
            state.channels[job, account] = channel_of(limit)
    accounts |= {terms.poster for terms in state.terms.values()}
    for account in sorted(accounts):
        if (free := await work[FreeMoneyRow].lock(account)) is not None:
            state.balances[account] = free.amount
    _fold(ours, state)
    await _store(state, work)


async def rebuild_money(announce_seconds: int, work: UnitOfWork) -> None:
    """Make the rows anew of the stored events: what the chain forgot is no longer among them."""
    known, made = await known_state(announce_seconds, work), await _rebuilt(announce_seconds, work)
    for job in sorted(known.budgets.keys() - made.budgets.keys()):
        await work[BudgetRow].remove(job)
    for place in sorted(known.channels.keys() - made.channels.keys()):
        await work[LimitRow].remove(*place)
    for account in sorted(known.balances.keys() - made.balances.keys()):
        await work[FreeMoneyRow].remove(account)
    await _store(made, work)


async def known_state(announce_seconds: int, work: UnitOfWork) -> EscrowState:
    """All rows."""
    state = EscrowState(announce_seconds)
    for row in await work[BudgetRow].where():
        _take_budget(row, state)
    for limit in await work[LimitRow].where():
        state.channels[limit.job, limit.account] = channel_of(limit)
    state.balances = {row.account: row.amount for row in await work[FreeMoneyRow].where()}
    return state


async def rebuilt_differences(announce_seconds: int, work: UnitOfWork) -> list[str]:
    """Each row that is not what the stored events make of it, as one line."""
    made = await _rebuilt(announce_seconds, work)
    return differences(await known_state(announce_seconds, work), made)


async def _rebuilt(announce_seconds: int, work: UnitOfWork) -> EscrowState:
    made = EscrowState(announce_seconds)
    _fold(_ours(await work[ChainEventRow].where(contract=CONTRACT, order="block")), made)
    return made


def _ours(events: Iterable[ChainEventRow]) -> list[ChainEventRow]:
    ours = (each for each in events if each.contract == CONTRACT)
    return sorted(ours, key=lambda each: (each.block, each.log_index))


def _fold(events: Iterable[ChainEventRow], state: EscrowState) -> None:
    for event in events:
        state.apply(event.event, _arguments(event), event.at)


def _arguments(event: ChainEventRow) -> Mapping[str, Any]:
    """As the chain told them: amounts beyond 63 bits were stored as 16 bytes."""
    return {
        name: wide(value) if isinstance(value, bytes) and len(value) == 16 else value
        for name, value in decode_arguments(event.args).items()
    }


def _touched(
    events: Iterable[ChainEventRow],
) -> tuple[set[Address], set[JobId], set[tuple[JobId, Address]]]:
    """Accounts, jobs and channels that events name."""
    accounts, channels = {BURN}, set[tuple[JobId, Address]]()
    jobs = set[JobId]()
    for event in events:
        arguments = _arguments(event)
        named = [Address(arguments[name]) for name in ("account", "poster") if name in arguments]
        accounts.update(named)
        if event.job is not None:
            jobs.add(event.job)
            if "account" in arguments:
                channels.add((event.job, named[0]))
    return accounts, jobs, channels


def _take_budget(row: BudgetRow, state: EscrowState) -> None:
    state.terms[row.job] = terms_of(row)
    state.budgets[row.job] = budget_of(row)


def budget_of(row: BudgetRow | None) -> Budget:
    """A job's budget, as the contract has it; empty for one that was never opened."""
    if row is None:
        return Budget()
    return Budget(row.funded, row.committed, row.closed_at, row.allowance, row.since)


def terms_of(row: BudgetRow) -> FundingTerms:
    """What the job's header says of its money."""
    return FundingTerms(row.poster, row.burst, row.rate)


def channel_of(row: LimitRow) -> Channel:
    """An account in a job, as the contract has it."""
    return Channel(
        row.limit, row.claimed, row.earned, row.stake, row.end, row.slash_amount, row.slash_from
    )


async def _store(state: EscrowState, work: UnitOfWork) -> None:
    await work[BudgetRow].put_all(
        [
            BudgetRow(job, **vars(state.terms[job]), **vars(budget))
            for job, budget in state.budgets.items()
        ]
    )
    await work[LimitRow].put_all(
        [
            LimitRow(job, account, **vars(channel))
            for (job, account), channel in state.channels.items()
        ]
    )
    await work[FreeMoneyRow].put_all(
        [FreeMoneyRow(account, BaseUnits(amount)) for account, amount in state.balances.items()]
    )
