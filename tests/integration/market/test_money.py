"""Rows of the money in the escrow are what its events say, whatever the chain takes back."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from contracts.chain.blocks import Log
from contracts.governance.escrow import BURN, Budget, Channel, EscrowState, differences
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.moments import UnixSeconds
from market.service.coding import encode_arguments
from market.service.money import (
    CONTRACT,
    apply_money,
    known_state,
    rebuild_money,
    rebuilt_differences,
)
from market.service.ports import UnitOfWork
from market.service.rows import BudgetRow, ChainEventRow, LimitRow
from tests.support.escrow_model import ANNOUNCE
from tests.support.escrow_twin import play, twin_on_chain
from tests.support.market_world import World


def rows_of(logs: Sequence[Log]) -> list[ChainEventRow]:
    """As the market stores them."""
    return [
        ChainEventRow(
            block=log.block,
            log_index=log.log_index,
            transaction=log.transaction,
            contract=log.contract,
            event=log.event,
            job=JobId(log.args["job"]) if "job" in log.args else None,
            args=encode_arguments(log.args),
            at=log.at,
        )
        for log in logs
    ]


async def told(events: Sequence[ChainEventRow], work: UnitOfWork) -> None:
    """The chain tells of these."""
    async with work:
        await work[ChainEventRow].add_all(events)
        await apply_money(events, ANNOUNCE, work)


async def forgotten(events: Sequence[ChainEventRow], work: UnitOfWork) -> None:
    """The chain went back."""
    async with work:
        for event in events:
            await work[ChainEventRow].remove(event.block, event.log_index)
        await rebuild_money(ANNOUNCE, work)


@pytest.mark.timeout(300)
async def test_money__random_history_in_batches_with_reorganisations__rows_are_the_fold(
    world: World, tmp_path: Path
) -> None:
    async with twin_on_chain(tmp_path) as twin:
        await play(twin, Random(5), 100)
    draw, events, done = Random(6), rows_of(twin.logs), 0
    went_back = 0
    while done < len(events):
        if done and draw.random() < 0.5:
            to = draw.randrange(max(0, done - 12), done)
            await forgotten(events[to:done], world.new_work())
            done, went_back = to, went_back + 1
        more = draw.randrange(1, 8)
        await told(events[done : done + more], world.new_work())
        done = min(len(events), done + more)

        expected = EscrowState(ANNOUNCE)
        for log in twin.logs[:done]:
            expected.apply(log.event, log.args, log.at)
        async with world.new_reading() as work:
            assert differences(await known_state(ANNOUNCE, work), expected) == []
            assert await rebuilt_differences(ANNOUNCE, work) == []
    assert went_back > 5 and len(events) > 50
    await forgotten(events, world.new_work())
    async with world.new_reading() as work:
        assert differences(await known_state(ANNOUNCE, work), EscrowState(ANNOUNCE)) == []


async def test_money__largest_amounts_that_the_chain_knows__are_kept(world: World) -> None:
    most, job = 2**80 - 1, bytes(32)
    told_of = {
        "Opened": {"poster": BURN, "budget": most, "burst": most, "rate": most},
        "LimitSet": {"account": BURN, "limit": most},
        "Claimed": {"account": BURN, "amount": most, "earned": most},
    }
    logs = [
        Log(
            CONTRACT,
            event,
            {"job": job, **args},
            1,
            ZERO_DIGEST,
            ZERO_DIGEST,
            index,
            UnixSeconds(1),
        )
        for index, (event, args) in enumerate(told_of.items())
    ]
    await told(rows_of(logs), world.new_work())

    async with world.new_reading() as work:
        known = await known_state(ANNOUNCE, work)
    assert known.balances == {BURN: most}
    assert known.budgets[JobId(job)] == Budget(most, most, 0, 0, 1)
    assert known.channels[JobId(job), BURN] == Channel(most, most, most)


async def test_rebuilt_differences__a_row_was_changed_by_hand__is_named(
    world: World, tmp_path: Path
) -> None:
    async with twin_on_chain(tmp_path) as twin:
        await play(twin, Random(5), 30)
    await told(rows_of(twin.logs), world.new_work())
    async with world.new_work() as work:
        (first, *_) = await work[LimitRow].where(order="-limit", limit=1)
        await work[LimitRow].put(LimitRow(**vars(first) | {"limit": first.limit + 1}))
        (budget, *_) = await work[BudgetRow].where(order="rate", limit=1)
        await work[BudgetRow].put(BudgetRow(**vars(budget) | {"rate": 5}))

    async with world.new_reading() as work:
        terms, line = await rebuilt_differences(ANNOUNCE, work)

    assert terms.startswith(f"terms 0x{budget.job.hex()}: ") and "rate=5" in terms
    assert line.startswith(f"channel 0x{first.job.hex()} 0x{first.account.hex()}: ")
    assert f"limit={first.limit + 1}" in line and f"limit={first.limit}," in line
