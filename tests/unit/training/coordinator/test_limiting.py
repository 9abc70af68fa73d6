"""What the coordinator tells of accounts, and whom it gives no work."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.governance.escrow import Channel
from contracts.governance.limits import planned_round
from contracts.terms.errors import ServiceUnreachable
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from tests.support.fakes.coordinator import ENOUGH, MemoryLimits
from tests.support.papers import Papers, make_papers
from tests.unit.training.coordinator.journals import join, open_journal
from training.coordinator.limiting import GONE_AFTER, Limiting
from training.coordinator.ports import Progress, Standings
from training.journal import Journal
from training.rounds.events import Disconnected
from training.telling import tell_nobody

START = 1_000_000


class World:
    """A coordinator of two accounts, neither of which has joined."""

    def __init__(self, papers: Papers, journal: Journal) -> None:
        self.papers, self.now = papers, UnixMillis(START)
        self.job = open_journal(papers, journal)
        self.escrow = MemoryLimits()
        self.limiting = Limiting(self.job, self.escrow, clock=lambda: self.now, tell=tell_nobody)

    def account(self, name: str) -> Address:
        """Whose wallet that is."""
        return self.papers.members[name].wallet.account

    async def trust(self, *names: str) -> None:
        """The market names these leases."""
        await self.limiting.trust(self.papers.leases[name].message for name in names)

    async def progress(self) -> Progress:
        """What a look tells."""
        await self.limiting.look()
        assert self.escrow.progress is not None
        return self.escrow.progress

    def join(self, name: str) -> None:
        """It becomes a member."""
        join(self.job, self.papers, name, self.now)

    def lose(self, name: str) -> None:
        """Its session has ended."""
        self.job.record(Disconnected(self.papers.members[name].session.peer, self.now))

    async def gone(self) -> list[str]:
        """Whose accounts are told to be gone, long after a look."""
        await self.limiting.look()
        self.now = UnixMillis(START + GONE_AFTER)
        earners = (await self.progress()).earners
        return [name for name in self.papers.leases if earners[self.account(name)].is_gone]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Journal(tmp_path / "journal") as journal:
        yield World(make_papers("ann", "bob"), journal)


async def test_why_idle__nobody_knows_the_account__waits_until_it_was_looked_up(
    world: World,
) -> None:
    assert world.limiting.why_idle(world.account("ann")) == "no_bond"

    await world.trust("ann")

    assert world.limiting.why_idle(world.account("ann")) is None
    assert world.limiting.why_idle(world.account("bob")) == "no_bond"


async def test_why_idle__not_looked_yet__members_go_on_as_before_this_start(world: World) -> None:
    world.join("ann")

    assert world.limiting.why_idle(world.account("ann")) is None
    assert world.limiting.why_idle(world.account("bob")) == "no_bond"


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        (Channel(limit=ENOUGH.limit, stake=1), "no_bond"),
        (Channel(limit=1, stake=ENOUGH.stake), "no_limit"),
        (Channel(limit=ENOUGH.limit, stake=ENOUGH.stake, end=7), "ended"),
    ],
)
async def test_why_idle__chain_holds_too_little__says_what_lacks_also_while_it_is_away(
    world: World, channel: Channel, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.escrow.channels[world.account("ann")] = channel
    await world.trust("ann", "bob")

    async def away(progress: Progress) -> Standings:
        raise ServiceUnreachable("no node here")

    monkeypatch.setattr(world.escrow, "look", away)
    await world.limiting.look()

    assert world.limiting.why_idle(world.account("ann")) == why
    assert world.limiting.why_idle(world.account("bob")) is None


async def test_look__nobody_has_worked_yet__tells_stakes_and_what_is_planned(
    world: World,
) -> None:
    await world.trust("ann")
    spec, lease = world.papers.spec.message, world.papers.leases["ann"].message

    told = (await world.progress()).earners[world.account("ann")]

    assert told.pay.round == planned_round(spec, [lease.price]) > 0
    assert (told.stake, told.works, told.is_gone) == (lease.stake, True, False)
    assert (await world.progress()).rounds_left == spec.batch.steps


async def test_look__no_machine_of_an_account_was_here_for_long__it_is_gone(
    world: World,
) -> None:
    await world.trust("ann", "bob")
    world.join("ann")

    assert await world.gone() == ["bob"]
    world.lose("ann")
    assert not (await world.progress()).earners[world.account("ann")].is_gone, "only just"


async def test_look__coordinator_was_cut_off_from_all_for_long__nobody_is_gone(
    world: World,
) -> None:
    await world.trust("ann", "bob")
    for name in ("ann", "bob"):
        world.join(name)
        world.lose(name)

    assert await world.gone() == []


async def test_look__an_account_waits_for_its_limit_for_long__is_not_gone(world: World) -> None:
    world.escrow.channels[world.account("bob")] = Channel(limit=0, stake=ENOUGH.stake)
    await world.trust("ann", "bob")
    world.join("ann")

    assert await world.gone() == []


async def test_may_work__account_that_is_idle__is_left_out_once_the_chain_was_looked_at(
    world: World,
) -> None:
    """A coordinator that came back bars nobody whom it has not looked up yet."""
    world.join("ann")
    world.join("bob")
    world.escrow.channels[world.account("ann")] = Channel(limit=1, stake=ENOUGH.stake)
    assert world.limiting.may_work() is None

    await world.limiting.look()

    assert world.limiting.may_work() == frozenset({world.papers.members["bob"].session.peer})
