"""Who is not backed by bond and limit does not work; who stops being so stops, and stays a member.

The coordinator's side: `tests/unit/tallystick/coordinator` has what it sends to the chain.
"""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from contracts.governance.claims import decode_sealed_pay
from contracts.governance.escrow import Budget
from contracts.terms.ids import Address
from tests.support.fakes.coordinator import ENOUGH
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers
from training.worker.store import PAY_FILE


def account_of(swarm: MemorySwarm, name: str) -> Address:
    return swarm.papers.members[name].wallet.account


def steps_of(swarm: MemorySwarm, name: str) -> list[int]:
    peer = swarm.session_of(name).peer
    return sorted({claim.round for claim in swarm.claims() if claim.peer == peer})


async def test_limits__one_has_none_at_first__all_wait_until_it_has(tmp_path: Path) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", "cem", steps=3), tmp_path)
    swarm.escrow.channels[account_of(swarm, "bob")] = replace(ENOUGH, limit=0)
    running = asyncio.create_task(swarm.run())
    why = "its account is not given work now: no_limit"
    while why not in {line["reason"] for line in swarm.lines("waits")}:
        await asyncio.sleep(0.001)
    assert not swarm.claims()

    swarm.escrow.channels.clear()
    await running

    assert len(steps_of(swarm, "bob")) == 3


async def test_limits__one_ends_in_the_middle__others_do_its_work_and_the_job_ends(
    tmp_path: Path,
) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", "cem", steps=6), tmp_path)
    ended = account_of(swarm, "bob")

    async def end() -> None:
        while len(swarm.seals()) < 2:
            await asyncio.sleep(0.001)
        swarm.escrow.channels[ended] = replace(ENOUGH, end=7)

    ending = asyncio.create_task(end())
    await swarm.run()
    await ending

    assert swarm.seals()[-1].last and len([s for s in swarm.seals() if s.gradient_norm]) == 6
    assert steps_of(swarm, "bob")[-1] < 6 == steps_of(swarm, "ann")[-1]
    record = swarm.history().record
    assert record is not None and swarm.session_of("bob").peer in record.members


async def test_limits__poster_closes_the_job__last_seal_follows_and_pays_what_was_done(
    tmp_path: Path,
) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", steps=50, commit_timeout=300), tmp_path)

    async def close() -> None:
        while len(swarm.seals()) < 2:
            await asyncio.sleep(0.001)
        swarm.escrow.budget = Budget(closed_at=7)

    closing = asyncio.create_task(close())
    await swarm.run()
    await closing

    seals = swarm.seals()
    assert seals[-1].last and len(seals) < 50 and seals[-1].vested == seals[-1].earned > 0
    assert not swarm.lines("not_validated"), "whoever is here still validates"


async def test_limits__every_seal__is_kept_with_its_pay_by_each_member_and_told_to_the_escrow(
    tmp_path: Path,
) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", steps=3), tmp_path)

    await swarm.run()

    newest, last = swarm.history().newest, swarm.escrow.progress
    assert newest is not None and last is not None and last.is_over
    for name in ("ann", "bob"):
        kept = decode_sealed_pay((tmp_path / name / PAY_FILE).read_bytes())
        assert (kept.seal, kept.pay) == (newest.seal, newest.pay)
    earned = {account: each.pay.earned for account, each in last.earners.items()}
    assert earned == {leaf.account: leaf.earned for leaf in newest.pay}


async def test_limits__coordinator_dies__knows_what_the_rounds_before_have_paid(
    tmp_path: Path,
) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", steps=4), tmp_path)
    swarm.deadly[COORDINATOR, "seal_stored", 3] = COORDINATOR

    await swarm.run()

    last, rounds = swarm.escrow.progress, rounds_of(swarm)
    assert last is not None
    for account, each in last.earners.items():
        assert each.pay.round == max(rounds[account]) and each.pay.at_risk == 0


def rounds_of(swarm: MemorySwarm) -> dict[Address, list[int]]:
    """What each seal added to the pay of each account."""
    pays = [history.newest.pay for history in swarm.sealed() if history.newest]
    totals = [{}, *({leaf.account: leaf.earned for leaf in pay} for pay in pays)]
    return {
        account: [b.get(account, 0) - a.get(account, 0) for a, b in pairwise(totals)]
        for account in totals[-1]
    }
