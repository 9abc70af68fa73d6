"""A slash happens once, whoever is killed on its way (docs/architecture.md 6).

Over real processes: the chain worker is stopped by a failpoint right after the announcement, and
later the burning, is stored or broadcast; it or the chain is killed there and starts again. What
a checked job's seals would rule is put into the market's rows: the job itself is a plain one. It is
over before, as a burn ends the work of its only account.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.governance.escrow import BURN
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Address, JobId
from market.adapters.postgres import PostgresWork, make_engine
from market.bodies.routes import GET_SLASH
from market.bodies.slashes import SlashView
from market.bootstrap import wall_clock
from market.service.rows import SlashRow
from tallystick.up.processes import send
from tests.support.money_story import account_of
from tests.support.patience import patience
from tests.support.stack import Stack, kill_and_see, restarted, stack

BUNDLE = blob_digest(b"all that a replay took")
STAKE, WANTED = 3_000_000, BaseUnits(2_000_000)
POINTS = ("announce", "burn")
"""Intentions of a slash (`market.adapters.chain`)."""


async def convict(running: Stack, job: JobId, account: Address) -> None:
    """Note what follows from a bundle that an auditor has shown."""
    engine = make_engine(running.services.addresses.database)
    async with PostgresWork(engine) as work:
        await work[SlashRow].add(SlashRow(BUNDLE, job, account, WANTED, convicted_at=wall_clock()))
    await engine.dispose()


async def kill_at_each_point(running: Stack, phase: str, victims: Sequence[str]) -> None:
    """At each point in turn the worker stands still; a victim is killed, and it goes on."""
    log = running.home / "logs" / "worker-chain.log"
    for what, name in zip(POINTS, victims, strict=True):
        await running.wait_line(log, "failpoint", at_event=f"{what}_{phase}", within=120)
        worker = running.services.identity("worker-chain")
        victim = running.services.identity(name)
        await kill_and_see(victim)
        if name != "worker-chain":
            send(worker, signal.SIGCONT)
        await restarted(running.services.folder, name, victim)


async def ended(running: Stack) -> SlashView:
    """The slash once it has ended."""
    async with asyncio.timeout(patience(180)):
        while True:
            slash = await running.client.call(GET_SLASH, evidence=BUNDLE)
            if slash.state not in ("convicted", "announcing", "announced"):
                return slash
            await asyncio.sleep(0.1)


@pytest.mark.nightly  # half a minute each: two kills of processes that take seconds to start
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("phase", "victims"),
    [("stored", ("worker-chain",) * 2), ("broadcast", ("anvil", "postgres"))],
    ids=["stored, worker", "broadcast, others"],
)
async def test_kill__mid_slash__is_announced_once_and_burned_once(
    phase: str, victims: tuple[str, ...], tmp_path: Path
) -> None:
    # Nothing here waits for the end of EXECUTE and TAIL, and no kill is to last beyond them.
    async with stack(tmp_path, announce=3, execute=600, tail=1800) as running:
        (running.home / "run" / "failpoints-market").write_text(
            ",".join(f"stop:{what}_{phase}:0" for what in POINTS)
        )
        running.start_provider("ann")
        job = (await running.submit(steps=6, min_stake=3)).job
        paid = (await running.settled(job, within=90)).claimed
        ann = account_of(running, "ann")
        await convict(running, job, ann)

        await kill_at_each_point(running, phase, victims)
        slash = await ended(running)

        escrow, head = running.contracts.escrow, await running.contracts.chain.head()
        events = [log.event for log in await escrow.events(0, head.number)]
        left = (await escrow.channels([(job, ann)], head))[job, ann].stake
        assert (slash.state, slash.amount) == ("burned", WANTED) and slash.ended_by is not None
        assert events.count("SlashAnnounced") == events.count("Burned") == 1
        assert (await escrow.balances([BURN], head))[BURN][0] == WANTED == STAKE - left
        assert (await running.job(job)).claimed == paid > 0
