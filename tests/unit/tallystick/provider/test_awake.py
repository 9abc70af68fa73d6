"""Does an agent know that its machine slept, and what that cost it?"""

import asyncio
from pathlib import Path

import pytest

from contracts.terms.ids import Digest
from market.bodies import Heartbeat, LeasesView
from tallystick.provider import agent as agent_module
from tallystick.provider.awake import Clocks, aftermath, interruption
from tallystick.provider.folder import ProviderFolder
from tallystick.provider.outside_audits import cancelled
from tests.unit.tallystick.provider.test_agent import LEASE, NOWHERE, Clock, Offers, agent_of

BEFORE = Clocks(1000.0, 50.0, 90.0)


@pytest.mark.parametrize(
    ("wall", "monotonic", "boot", "told"),
    [
        (1.0, 1.0, 1.0, None),
        (9.0, 9.0, 9.0, None),  # much to do
        (77.0, 1.0, 77.0, "this machine was asleep for 76 s"),
        (77.0, 77.0, 77.0, "this agent was stopped for 76 s"),
        (301.0, 1.0, 1.0, "this machine's clock was turned forward by 300 s"),
        (-59.0, 1.0, 1.0, "this machine's clock was turned back by 60 s"),
    ],
)
def test_interruption__clocks_move_apart__says_what_happened(
    wall: float, monotonic: float, boot: float, told: str | None
) -> None:
    after = Clocks(BEFORE.wall + wall, BEFORE.monotonic + monotonic, BEFORE.boot + boot)

    assert interruption(BEFORE, after, 1.0) == told


def test_aftermath__some_leases_are_gone__says_how_many() -> None:
    assert aftermath([], []).startswith("no lease was held")
    assert aftermath([b"a", b"b"], [b"b"]).startswith("1 of 2 leases go on; 1 were given to others")


class Leasing(Offers):
    """A market that has one lease of ours, until it is taken away."""

    leases = (LEASE.model_copy(update={"state": "silent"}),)

    async def heartbeat_offer(
        self, offer: Digest, body: Heartbeat, *, wait_seconds: int = 0
    ) -> LeasesView:
        """What is live, noted."""
        self.noted.put_nowait("heard")
        return LeasesView(leases=self.leases)


async def test_heartbeats__machine_slept__are_there_at_once_and_say_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, folder, said = [BEFORE], ProviderFolder(tmp_path), list[str]()
    async with Leasing() as client, asyncio.timeout(30):
        agent = agent_of(client, folder, Clock(), say=said.append)
        agent.clocks = lambda: clocks[0]
        agent._peers[LEASE.lease] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        monkeypatch.setattr(agent_module, "HEARTBEAT_SECONDS", 3600.0)
        beats = asyncio.create_task(agent._heartbeats(NOWHERE))
        while await client.noted.get() != "heard":
            pass
        monkeypatch.setattr(agent_module, "WATCH_SECONDS", 0.001)
        watch = asyncio.create_task(agent._watch_clocks())
        await asyncio.sleep(0)
        clocks[0] = Clocks(1076.0, 50.0, 166.0)
        while await client.noted.get() != "heard":
            pass
        await asyncio.sleep(0)
        for task in (beats, watch, agent._peers.pop(LEASE.lease)):
            await cancelled(task)
    folder.close()

    (told,) = [line for line in said if "asleep" in line]
    assert told.startswith("this machine was asleep for 76 s: 0 of 1 leases go on; 1 were given")
