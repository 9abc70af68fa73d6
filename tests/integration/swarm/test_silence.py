"""What a silent site, a suspended peer and lost packets cost a job; real processes and network.

Six peers of two stages, or six replicas that take local steps, in two sites of network namespaces,
with the coordinator at the first: each stage has members at both. One job goes through all rows; a
row ends when everybody whom it struck has claimed again. Printed for each: seconds without a seal,
and items; at its end, how many items no seal has although one has later ones.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.items import count
from tests.support.namespaces import Site, network, packets_as_sent
from tests.support.swarm_job import COORDINATOR
from tests.support.swarm_process import process_papers
from tests.support.swarm_processes import ProcessSwarm

PEERS = ("ann", "bob", "cem", "dan", "eve", "fay")
ITEMS = 24
JOB: dict[str, Any] = {
    "steps": 4000, "units_per_step": ITEMS, "redo_after": 1000, "validate_every": 4000,
    "checkpoint_every": 10,
}  # fmt: skip
LOCAL_JOB = JOB | {
    "strategy": "local", "gradient_codec": "seeded4", "peers_per_stage": 6, "units_per_step": 96,
    "local": {
        "inner_steps": 8, "segments": 16, "rewarm_steps": 2, "outer_rate": 10**6,
        "outer_momentum": 0, "round_time": 10_000, "quorum": 2,
    },
}  # fmt: skip
HEAD = (
    "silence | seals | first after | longest gap | re-routed | redone | unsealed | back after (s)"
)


@dataclass(frozen=True)
class Row:
    """A disturbance: how long, and whom it strikes."""

    name: str
    seconds: float
    struck: tuple[str, ...]
    begin: Callable[[], AbstractContextManager[object]]


def peers_of(swarm: ProcessSwarm) -> Mapping[str, str]:
    """Peer of each worker, as logs name it."""
    members = process_papers(swarm.folder).members.items()
    return {name: member.session.peer.hex() for name, member in members}


class Watching:
    """Carries rows out, one after the other, and counts in the logs."""

    def __init__(self, swarm: ProcessSwarm) -> None:
        self._swarm = swarm

    async def carry_out(self, row: Row) -> list[str]:
        """Its line of the table."""
        await self._all_commit(PEERS, time.time())
        began = time.time()
        with row.begin():
            await asyncio.sleep(row.seconds)
            ended = time.time()
        await self._all_commit(row.struck, ended)
        back = time.time() - ended
        seals = [at for at in self._moments("seal_stored") if began <= at <= ended]
        gaps = [b - a for a, b in zip([began, *seals], [*seals, ended], strict=True)]
        failed = self._lines(COORDINATOR, "item_failed", began)
        redone = sum(line["items"] for line in self._lines(COORDINATOR, "reopened", began))
        first = f"{gaps[0]:.1f}" if seals else "none"
        numbers = (len(seals), first, f"{max(gaps):.1f}", len(failed), redone)
        assert max(gaps) < row.seconds, f"{row.name}: the job stood still"
        record = self._swarm.history().record  # which no seal is in that pays an item twice
        assert record is not None
        unsealed = count(record.cursor.unsealed)
        return [row.name, *map(str, numbers), str(unsealed), f"{back:.1f}"]

    async def _all_commit(self, names: tuple[str, ...], since: float) -> None:
        wanted = {peer for name, peer in peers_of(self._swarm).items() if name in names}
        async with asyncio.timeout(120):
            while wanted:
                lines = self._lines(COORDINATOR, "claim_stored", since)
                wanted -= {line["peer"] for line in lines}
                await asyncio.sleep(0.1)

    def _lines(self, role: str, event: str, since: float) -> list[dict[str, Any]]:
        return [line for line in self._swarm.lines(role, event) if line["at"] / 1000 >= since]

    def _moments(self, event: str) -> list[float]:
        return [line["at"] / 1000 for line in self._swarm.lines(COORDINATOR, event)]


@asynccontextmanager
async def running(swarm: ProcessSwarm) -> AsyncIterator[Watching]:
    """The job, until the block is left."""
    life = asyncio.ensure_future(swarm.run(timeout=1500))
    try:
        yield Watching(swarm)
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life


async def two_sites(swarm: ProcessSwarm) -> tuple[str, ...]:
    """Three who are away: of two stages one of the first and two of the second."""
    async with asyncio.timeout(120):
        while len(joined := swarm.lines(COORDINATOR, "peer_joined")) < len(PEERS):
            await asyncio.sleep(0.1)
    stage_of = {line["peer"]: line["stage"] for line in joined}
    peers = peers_of(swarm)
    return tuple(sorted(PEERS, key=lambda name: stage_of[peers[name]]))[-4:-1]


def rows_of(swarm: ProcessSwarm, sites: Mapping[str, Site], away: tuple[str, ...]) -> list[Row]:
    """All disturbances."""
    cables, suspended = [sites[name] for name in away], away[-1]

    def cut() -> AbstractContextManager[object]:
        return together(each.cut() for each in cables)

    def lossy() -> AbstractContextManager[object]:
        return together(each.losing(0.02) for each in cables)

    @contextmanager
    def stopped() -> Iterator[None]:
        swarm.send(suspended, signal.SIGSTOP)
        yield
        swarm.send(suspended, signal.SIGCONT)

    return [
        Row("site cut for 60 s", 60, away, cut),
        Row("a peer suspended for 60 s", 60, (suspended,), stopped),
        Row("2 % of a site's packets lost for 60 s", 60, away, lossy),
        Row("site cut for 180 s", 180, away, cut),
    ]


@contextmanager
def together(disturbances: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """All of them at once."""
    with ExitStack() as stack:
        for each in disturbances:
            stack.enter_context(each)
        yield


@pytest.mark.nightly
@pytest.mark.root  # network namespaces
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("stages", "job"), [(2, JOB), (1, LOCAL_JOB)], ids=["every_step", "local"])
async def test_swarm__silence_of_a_site_and_of_a_peer__the_others_go_on_and_it_comes_back(
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    stages: int,
    job: dict[str, Any],
) -> None:
    with network("home", *PEERS) as sites:
        for site in sites.values():
            packets_as_sent(site)
        roles = {COORDINATOR: sites["home"]}
        roles |= {name: sites[name] for name in PEERS}
        swarm = ProcessSwarm(tmp_path, workers=PEERS, stages=stages, changed=job, sites=roles)
        async with running(swarm) as watching:
            away = await two_sites(swarm)
            table = [HEAD]
            for row in rows_of(swarm, sites, away):
                table.append(" | ".join(await watching.carry_out(row)))
                print(table[-1], flush=True)
            record_property("table", "\n".join(table))
