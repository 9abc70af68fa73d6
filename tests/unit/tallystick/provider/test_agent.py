"""When does an agent end a peer or stand back, and what does it sign to work and to audit?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.chain.deployment import NAMES
from contracts.governance.escrow import Budget, Channel
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Conflict, NotFound, ServiceUnreachable
from contracts.terms.escrow_messages import Bond, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import decode_signed, expect
from market.bodies.base import SignedBody
from market.bodies.jobs import JobView
from market.bodies.market import NetworkView
from market.bodies.offers import (
    AcceptLease,
    BondAsked,
    BondView,
    Heartbeat,
    LeaseHeard,
    LeasesView,
    LeaseView,
    OfferStored,
    PostBond,
    Withdrawal,
)
from tallystick.provider import agent as agent_module
from tallystick.provider.agent import PATIENCE_SECONDS, WIND_DOWN_SECONDS, Agent, Ask
from tallystick.provider.beacons import Counts
from tallystick.provider.disk import PAUSE, RESERVE
from tallystick.provider.folder import (
    ProviderFolder,
    end_upload,
    jobs_in,
    note_settled,
    note_upload,
    save_pay,
    save_signed,
)
from tallystick.provider.limits import LOOK_SECONDS, Idleness
from tallystick.provider.money import HAS_QUIT
from tallystick.provider.outside_audits import cancelled
from tallystick.up.child import Start
from tests.support.answering import AnsweringMarket
from tests.support.history import DOMAIN, make_session, make_spec, make_wallet
from tests.support.patience import patience
from tests.unit.tallystick.provider.own_chain import NOWHERE, TIMES, OwnChain
from tests.unit.tallystick.provider.test_limits import sealed

SPEC = make_spec(make_wallet("poster"), make_wallet("coordinator"))
SIGNED = make_wallet("poster").sign(SPEC, NOWHERE.domain)
LEASE = LeaseView(
    lease=Digest(b"l" * 32), state="reserved", offer=Digest(b"o" * 32), job=SPEC.job(),
    account=Address(b"a" * 20), stage=0, price=PricePerPflop(1), stake=BaseUnits(5),
    accept_ends=UnixMillis(0), spec=SIGNED.encoded(), accept=None, session_key=None, heard_at=None,
)  # fmt: skip
ACTIVE = LEASE.model_copy(update={"state": "active"})
ASK = Ask(PricePerPflop(1), BaseUnits(0), "cpu", 2**30, 10**9, 10**8, 1, timedelta(days=1))
ENOUGH = Channel(limit=10**12, stake=5)


class Market(AnsweringMarket):
    """Takes and notes what an agent sends, and fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = asyncio.Queue[str]()  # what became of offers
        self.leases: tuple[LeaseView, ...] = ()
        self.reports: list[Any] = []  # of the steps of its job
        self.bonds: list[bytes] = []
        self.accepted: list[AcceptLease] = []
        self.heard: list[Digest] = []
        self.over: set[Digest] = set()  # leases of which it knows nothing
        self.failures: list[Exception] = []
        self._withdrawn: set[Digest] = set()

    async def post_offer(self, body: SignedBody) -> OfferStored:
        """Note it."""
        self.noted.put_nowait("posted")
        offer = expect(decode_signed(body.signed), Offer).message.digest()
        return OfferStored(offer=offer, withdrawn=offer in self._withdrawn, takes_checked_jobs=True)

    async def delete_offer(self, body: Withdrawal, offer: Digest) -> None:
        """Note it."""
        self._withdrawn.add(offer)
        self.noted.put_nowait("withdrawn")

    async def post_offer_heartbeat(
        self, body: Heartbeat, offer: Digest, wait: int = 0
    ) -> LeasesView:
        """No lease, unless the test says otherwise."""
        if self.failures:
            raise self.failures.pop(0)
        return LeasesView(leases=self.leases)

    async def get_network(self) -> NetworkView:
        """Name a chain that began afresh."""
        contracts = SimpleNamespace(**dict.fromkeys(NAMES, Address(bytes(20))))
        said = SimpleNamespace(chain_id=1, genesis=Digest(b"g" * 32), contracts=contracts)
        return cast(NetworkView, said)

    async def get_job(self, job: JobId) -> JobView:
        """Its spec, and what was reported."""
        return cast(JobView, SimpleNamespace(signed=SIGNED.encoded(), reports=self.reports))

    async def post_accept(self, body: AcceptLease, lease: Digest) -> None:
        """Keep it."""
        self.accepted.append(body)

    async def post_lease_heartbeat(self, body: Heartbeat, lease: Digest) -> LeaseHeard:
        """Note it."""
        self.heard.append(lease)
        if lease in self.over:
            raise NotFound("no such lease")
        return LeaseHeard(lease=lease, state="active", heard_at=body.at)

    async def post_auditor_bond(self, body: PostBond, account: Address) -> BondView:
        """Keep it."""
        self.bonds.append(body.bond)
        if self.failures:
            raise self.failures.pop(0)
        bond = expect(decode_signed(body.bond), Bond).message
        return BondView(job=bond.job, account=account, stake=bond.stake, state="accepted")


class Working:
    """The process of a peer that works until it is asked to leave."""

    def __init__(self, *_: object, **_named: object) -> None:
        self.ended = asyncio.Event()

    async def stop(self, *_: object, **_named: object) -> None:
        """See `Child.stop`."""
        self.ended.set()


class World:
    """An agent, its market and its chain, which stand still unless they are told."""

    def __init__(self, folder: ProviderFolder) -> None:
        self.folder, self.market, self.chain = folder, Market(), OwnChain(free=5)
        self.now, self.free, self.said = 0.0, 10 * RESERVE, list[str]()
        self.agent = self.started()

    def started(self) -> Agent:
        """Another start of the agent in the same folder."""
        agent = Agent(
            self.market, self.folder, make_wallet("ann"), ASK, {}, self.said.append,
            start=cast(Start, Working), monotonic=lambda: self.now, free=lambda _: self.free,
        )  # fmt: skip
        agent.stand_on(self.chain.on_chain(), TIMES, Counts(0, 0.0))
        return agent

    def peer(self) -> "asyncio.Task[None]":
        """The peer of the lease, which works for ever."""
        peer = self.agent._peers[LEASE.lease] = asyncio.create_task(_for_ever())
        return peer

    async def look(self, later: float = 0.0) -> None:
        """The agent looks whether peers may work; one that leaves has gone."""
        self.now += later
        await self.agent._look_at_limits()
        for _ in range(2):
            await asyncio.sleep(0)


async def _for_ever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for name in ("HEARTBEAT_SECONDS", "ROOM_SECONDS"):
        monkeypatch.setattr(agent_module, name, 0.001)
    with contextlib.closing(ProviderFolder(tmp_path)) as folder:
        found = World(folder)
        async with found.market, asyncio.timeout(patience(30)), found.agent._tasks:
            yield found


async def test_heartbeats__market_is_on_another_chain_since__ends_and_says_to_start_again(
    world: World,
) -> None:
    world.market.failures = [NotFound("no such offer")]

    with pytest.raises(Conflict, match="is on another chain since we began: start again"):
        await world.agent._heartbeats()


async def test_follow__peer_uploads_when_its_lease_is_over__is_left_alone_until_it_is_done(
    world: World,
) -> None:
    peer, folder = world.peer(), world.folder.lease(LEASE.lease)
    note_upload(folder)
    await world.agent._follow(())

    world.now = 10 * WIND_DOWN_SECONDS
    await world.agent._follow(())
    was_left_alone = not peer.done()
    end_upload(folder)
    await world.agent._follow(())

    assert was_left_alone and peer.cancelled()


def asked(stake: int) -> BondAsked:
    return BondAsked(job=SPEC.job(), price=PricePerPflop(7), stake=BaseUnits(stake))


async def test_back__market_fails_and_the_agent_is_killed__sends_what_it_signed_first(
    world: World,
) -> None:
    world.market.failures = [ServiceUnreachable("away")]
    with pytest.raises(ServiceUnreachable):
        await world.agent.outside._back(asked(5))
    await world.started().outside._back(asked(5))

    first, second = world.market.bonds
    said = expect(decode_signed(first), Bond).message
    assert first == second
    assert (said.job, said.account, said.stake) == (SPEC.job(), make_wallet("ann").account, 5)
    assert [each.job for each in jobs_in(world.folder.home)] == [SPEC.job()]


async def test_back__less_is_free_than_is_asked__signs_nothing_and_tells(world: World) -> None:
    world.chain.free = 4

    await world.agent.outside._back(asked(5))

    assert world.market.bonds == [] and "0.000004 are free in the escrow" in world.said[0]


async def test_back__stake_was_bonded_with_another_torch__is_not_bonded_again_nor_audited(
    world: World,
) -> None:
    outside = world.agent.outside
    for own in ("cpu", "cuda/A/torch-2.13.0"):
        outside.device_class = own
        await outside._back(asked(5))
    await outside._listed((SPEC.job(),), print)

    assert len(world.market.bonds) == 1 and outside.auditors == {}
    assert [line for line in world.said if "computes as a cuda/A" in line]


async def test_paid__market_names_jobs__only_those_with_our_bond_and_a_limit_are_audited(
    world: World,
) -> None:
    folder, found = world.folder.audit(SPEC.job()), []
    save_signed(folder, SIGNED)
    for channel, earned in (
        (Channel(limit=9), 1),
        (Channel(stake=5), 1),
        (Channel(stake=5, limit=9), 1),
        (Channel(stake=5, limit=9, end=7), 1),
        (Channel(stake=5, limit=9), 9),
    ):
        world.chain.channel = channel
        save_pay(folder, sealed(3, earned, spec=SPEC))
        found.append(await world.agent.outside._paid((SPEC.job(), JobId(b"k" * 32))))

    assert found == [(), (), (SPEC.job(),), (), ()]
    assert "may draw us, and could not pay" in world.said[0]


async def test_speak_for__peers_at_work__only_for_them_and_no_more_once_one_is_refused(
    world: World,
) -> None:
    names = [Digest(name * 32) for name in (b"a", b"b", b"c")]
    leases = tuple(LEASE.model_copy(update={"lease": name}) for name in names)
    world.agent._done.add(names[1])  # its peer has left
    found = await world.agent._send_heartbeats(leases)
    heard = list(world.market.heard)
    world.market.over.add(names[2])
    refused = await world.agent._send_heartbeats(leases)

    assert heard == [each.lease for each in found] == [names[0], names[2]]
    assert {each.state for each in found} == {"active"} and refused == ()


async def test_heartbeats__disk_is_full_at_work__peers_leave_and_the_offer_is_back_when_it_is_not(
    world: World,
) -> None:
    beats, next_note = asyncio.create_task(world.agent._heartbeats()), world.market.noted.get
    noted = [await next_note()]
    peer = world.peer()
    world.free = RESERVE - 1
    noted.append(await next_note())
    await asyncio.wait([peer])
    world.free = 10 * RESERVE
    noted += [await next_note() for _ in range(2)]
    await cancelled(beats)

    assert noted == ["posted", "withdrawn", "withdrawn", "posted"]
    assert peer.cancelled() and LEASE.lease in world.agent._done  # nobody speaks for it
    told = [line for line in world.said if "disk" in line]
    assert told[0].startswith("the disk is full: 256 MB are free") and "peers leave" in told[0]
    assert told[1].startswith("over after 0:00:00: the disk is full") and len(told) == 2


async def test_follow__lease_was_accepted_with_another_torch__its_peer_does_not_start(
    world: World,
) -> None:
    agent = world.agent
    accept = agent._lease_accept(ACTIVE, make_session("peer"))
    save_signed(world.folder.lease(LEASE.lease), agent.wallet.sign(accept, NOWHERE.domain))
    agent.ask = replace(agent.ask, device_class="cpu/x86_64/AVX2/torch-2.13.0")
    await agent._follow((ACTIVE,))

    (said,) = world.said
    assert "the lease is of a cpu, and this machine computes as a cpu/x86_64/AVX2" in said
    assert (world.market.heard, agent._peers) == ([], {})


async def test_follow__lease_asks_for_stake__is_accepted_with_a_bond_unless_it_is_bonded(
    world: World,
) -> None:
    await world.agent._follow((LEASE,))
    world.chain.channel = Channel(stake=5)
    await world.agent._follow((LEASE,))

    first, second = world.market.accepted
    assert first.bond is not None and second.bond is None and first.accept == second.accept
    assert expect(decode_signed(first.bond), Bond).message.stake == 5
    assert [job.spec for job in jobs_in(world.folder.home)] == [SPEC]


async def test_follow__pay_would_vest_after_tail__lease_is_not_accepted(world: World) -> None:
    minute = 60_000
    world.market.reports = [SimpleNamespace(step=step, at=minute * step) for step in (1, 2)]

    await world.agent._follow((LEASE,))

    assert world.market.accepted == [] and "a TAIL of" in world.said[0]


async def test_follow__job_that_the_disk_has_no_room_for__is_not_accepted_and_told(
    world: World,
) -> None:
    world.free = RESERVE + 1
    await world.agent._follow((LEASE,))
    lacks = world.agent.room.lacks()
    world.now = PAUSE

    (said,) = world.said
    assert "the job may take" in said and world.market.accepted == []
    assert lacks is not None and "no room for the job that was matched" in lacks
    assert world.agent.room.lacks() is None  # other jobs ask for less


async def test_follow__quit_that_we_signed_still_counts__we_work_there_no_more(
    world: World,
) -> None:
    world.chain.channel, ann = ENOUGH, make_wallet("ann")
    by = UnixSeconds(world.chain.now + 50)
    quit_there = Quit(job=SPEC.job(), account=ann.account, keep=BaseUnits(9), by=by)
    save_signed(world.folder.lease(Digest(b"q" * 32)), ann.sign(quit_there, DOMAIN))
    await world.agent._follow((LEASE,))
    was_accepted = bool(world.market.accepted)
    idle = [await world.agent._why_idle(ACTIVE)]
    world.chain.now += 51
    await world.agent._follow((LEASE,))
    idle.append(await world.agent._why_idle(ACTIVE))

    assert not was_accepted and world.market.accepted
    assert "Quit that we have signed" in world.said[0]
    assert idle == [Idleness(HAS_QUIT), None]


async def test_why_idle__job_is_over_and_we_have_quit__peer_stays_to_publish_what_was_trained(
    world: World,
) -> None:
    ann, folder = make_wallet("ann"), world.folder.lease(ACTIVE.lease)
    by = UnixSeconds(world.chain.now + 50)
    quit_there = Quit(job=SPEC.job(), account=ann.account, keep=BaseUnits(9), by=by)
    save_signed(folder, ann.sign(quit_there, DOMAIN))
    save_pay(folder, sealed(3, 9, spec=SPEC))
    before = await world.agent._why_idle(ACTIVE)
    save_pay(folder, sealed(4, 9, last=True, spec=SPEC))

    assert before == Idleness(HAS_QUIT)
    assert await world.agent._why_idle(ACTIVE) is None


async def test_look_at_limits__limit_comes_and_account_ends__peer_starts_and_leaves(
    world: World,
) -> None:
    agent = world.agent
    agent._active = {LEASE.lease: ACTIVE}
    num_peers = list[int]()
    for channel in (Channel(), Channel(), ENOUGH, replace(ENOUGH, end=7)):
        world.chain.channel = channel
        await world.look(later=PATIENCE_SECONDS)
        num_peers.append(len(agent._peers))

    assert num_peers == [0, 0, 1, 0] and agent._leaving == set()
    assert "no work comes in job" in world.said[0] and "are confirmed" in world.said[0]
    assert "our peer leaves job" in world.said[-1]
    assert "our account has ended there" in world.said[-1]


@pytest.mark.parametrize(
    "shown",
    [{"state": "accepted"}, {"job": JobId(b"k" * 32)}, None],
    ids=["as accepted", "as another job", "not at all"],
)
async def test_follow__market_shows_the_lease_of_a_peer_otherwise__its_limit_is_looked_at_still(
    world: World, shown: dict[str, object] | None
) -> None:
    world.chain.channel, agent = ENOUGH, world.agent
    save_signed(world.folder.lease(LEASE.lease), SIGNED)
    note_settled(world.folder.lease(LEASE.lease))  # the market showed no lease for a moment
    await agent._follow((ACTIVE,))
    assert [each.job for each in jobs_in(world.folder.home, unsettled=True)] == [LEASE.job]
    peer = agent._peers[LEASE.lease]
    world.chain.channel = Channel(limit=0, stake=5)
    world.now += PATIENCE_SECONDS
    await agent._follow(() if shown is None else (ACTIVE.model_copy(update=shown),))
    await world.look()

    assert peer.cancelled() and "leaves no room for 2 rounds" in world.said[-1]
    assert not agent._started and not agent._peers


async def test_look_at_limits__lease_ends_with_the_job_closed__peer_leaves_and_it_is_told(
    world: World,
) -> None:
    world.chain.channel, agent = ENOUGH, world.agent
    agent._active = agent._started = {LEASE.lease: ACTIVE}
    world.peer()

    await agent._follow(())
    await world.look()
    goes_on = LEASE.lease in agent._peers
    for budget in (Budget(closed_at=7), Budget()):
        world.chain.budget = budget
        await world.look(later=LOOK_SECONDS)

    (said,) = world.said
    assert goes_on and agent._peers == {} and "its poster has closed it" in said
