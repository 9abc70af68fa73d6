"""When does an agent end a peer or stand back, and what does it sign to work and to audit?"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contracts.chain.deployment import NAMES
from contracts.governance.escrow import Budget, Channel
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Conflict, NotFound, ServiceUnreachable
from contracts.terms.escrow_messages import Bond, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed, decode_signed, expect
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
from tallystick.provider.background import Say
from tallystick.provider.coins import Counts
from tallystick.provider.disk import PAUSE, RESERVE, Free
from tallystick.provider.folder import (
    ProviderFolder,
    end_upload,
    jobs_in,
    note_settled,
    note_upload,
    save_accept,
    save_pay,
    save_signed,
)
from tallystick.provider.limits import LOOK_SECONDS, Idleness
from tallystick.provider.money import HAS_QUIT
from tallystick.provider.outside_audits import cancelled
from tallystick.sdk.client import MarketClient
from tests.support.answering import AnsweringMarket
from tests.support.history import DOMAIN, make_session, make_spec, make_wallet
from tests.support.patience import patience
from tests.unit.tallystick.provider.own_chain import NOWHERE, TIMES, OwnChain
from tests.unit.tallystick.provider.test_limits import sealed

LEASE = LeaseView(
    lease=Digest(b"l" * 32), state="silent", offer=Digest(b"o" * 32), job=JobId(b"j" * 32),
    account=Address(b"a" * 20), stage=0, price=PricePerPflop(1), stake=BaseUnits(0),
    accept_ends=UnixMillis(0), spec=b"spec", accept=None, session_key=None, heard_at=None,
)  # fmt: skip
ASK = Ask(PricePerPflop(1), BaseUnits(0), "cpu", 2**30, 10**9, 10**8, 1, timedelta(days=1))
SPEC = make_spec(make_wallet("poster"), make_wallet("coordinator"))


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ProviderFolder]:
    made = ProviderFolder(tmp_path)
    yield made
    made.close()


async def _for_ever() -> None:
    await asyncio.Event().wait()


def agent_of(
    client: MarketClient,
    folder: ProviderFolder,
    clock: Clock,
    *,
    say: Say = print,
    free: Free = lambda _: 10 * RESERVE,
    chain: OwnChain | None = None,
) -> Agent:
    agent = Agent(
        client, folder, make_wallet("ann"), make_session("agent"), ASK, (), {}, say,
        monotonic=clock, free=free,
    )  # fmt: skip
    agent.stand_on((chain or OwnChain()).on_chain(), TIMES, Counts(0, 0.0))
    return agent


class MadeAnew(AnsweringMarket):
    """A market that knows nothing any more, on a chain that began afresh."""

    async def post_offer_heartbeat(self, body: Heartbeat, **_named: object) -> LeasesView:
        """Know no offer."""
        raise NotFound("no such offer")

    async def get_network(self) -> NetworkView:
        """Name the new chain."""
        contracts = SimpleNamespace(**dict.fromkeys(NAMES, Address(bytes(20))))
        said = SimpleNamespace(chain_id=1, genesis=Digest(b"g" * 32), contracts=contracts)
        return cast(NetworkView, said)


async def test_heartbeats__market_is_on_another_chain_since__ends_and_says_to_start_again(
    folder: ProviderFolder,
) -> None:
    async with MadeAnew() as client:
        agent = agent_of(client, folder, Clock())

        async def standing() -> Signed[Offer]:
            return agent.wallet.sign(agent._new_offer(0), NOWHERE.domain)

        agent._standing_offer = standing  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="is on another chain since we began: start again"):
            await agent._heartbeats()


async def test_follow__peer_uploads_when_its_lease_is_over__is_left_alone_until_it_is_done(
    folder: ProviderFolder,
) -> None:
    clock = Clock()
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = agent_of(client, folder, clock)
        peer = asyncio.create_task(_for_ever())
        agent._peers[LEASE.lease] = peer
        note_upload(folder.lease(LEASE.lease))
        await agent._follow(())

        clock.now = 10 * WIND_DOWN_SECONDS
        await agent._follow(())
        was_left_alone = not peer.done()
        end_upload(folder.lease(LEASE.lease))
        await agent._follow(())
    assert was_left_alone and peer.cancelled()


class Bonds(AnsweringMarket):
    """A market that fails as it is told, and keeps what it was sent."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.sent: list[bytes] = []

    async def get_job(self, job: JobId) -> JobView:
        """Only its spec."""
        signed = make_wallet("poster").sign(SPEC, DOMAIN).encoded()
        return cast(JobView, SimpleNamespace(signed=signed))

    async def post_auditor_bond(self, body: PostBond, account: Address) -> BondView:
        """Keep it."""
        self.sent.append(body.bond)
        if self.failures:
            raise self.failures.pop(0)
        bond = expect(decode_signed(body.bond), Bond).message
        return BondView(job=bond.job, account=account, stake=bond.stake, state="accepted")


def asked(stake: int) -> BondAsked:
    return BondAsked(job=SPEC.job(), price=PricePerPflop(7), stake=BaseUnits(stake))


async def test_back__market_fails_and_the_agent_is_killed__sends_what_it_signed_first(
    tmp_path: Path,
) -> None:
    client = Bonds(ServiceUnreachable("away"))
    async with client:
        for _ in range(2):
            folder = ProviderFolder(tmp_path)
            agent = agent_of(client, folder, Clock(), chain=OwnChain(free=5))
            with contextlib.suppress(ServiceUnreachable):
                await agent.outside._back(asked(5))
            folder.close()

    first, second = client.sent
    said = expect(decode_signed(first), Bond).message
    assert first == second
    assert (said.job, said.account, said.stake) == (SPEC.job(), make_wallet("ann").account, 5)
    assert [each.job for each in jobs_in(tmp_path)] == [SPEC.job()]


async def test_back__less_is_free_than_is_asked__signs_nothing_and_tells(
    folder: ProviderFolder,
) -> None:
    client, said = Bonds(), list[str]()
    async with client:
        agent = agent_of(client, folder, Clock(), say=said.append, chain=OwnChain(free=4))
        await agent.outside._back(asked(5))

    assert client.sent == [] and "0.000004 are free in the escrow" in said[0]


class Beats(AnsweringMarket):
    """A market that hears of leases; of those in `over` it knows nothing."""

    def __init__(self, over: set[Digest]) -> None:
        super().__init__()
        self.over, self.heard = over, list[Digest]()

    async def post_lease_heartbeat(self, body: Heartbeat, lease: Digest) -> LeaseHeard:
        """Note it."""
        self.heard.append(lease)
        if lease in self.over:
            raise NotFound("no such lease")
        return LeaseHeard(lease=lease, state="active", heard_at=body.at)


async def test_speak_for__peers_at_work__only_for_them_and_no_more_once_one_is_refused(
    folder: ProviderFolder,
) -> None:
    names = [Digest(name * 32) for name in (b"a", b"b", b"c")]
    leases = tuple(LEASE.model_copy(update={"lease": name}) for name in names)
    over = set[Digest]()
    async with Beats(over) as client:
        agent = agent_of(client, folder, Clock())
        agent._done.add(names[1])  # its peer has left
        found = await agent._send_heartbeats(leases)
        heard = list(client.heard)
        over.add(names[2])
        refused = await agent._send_heartbeats(leases)

    assert heard == [each.lease for each in found] == [names[0], names[2]]
    assert {each.state for each in found} == {"active"} and refused == ()


class Offers(AnsweringMarket):
    """A market that notes what becomes of offers."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = asyncio.Queue[str]()
        self.leases: tuple[LeaseView, ...] = ()
        self._withdrawn = set[Digest]()

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
        return LeasesView(leases=self.leases)


async def test_heartbeats__disk_is_full_at_work__peers_leave_and_the_offer_is_back_when_it_is_not(
    folder: ProviderFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_SECONDS", "ROOM_SECONDS"):
        monkeypatch.setattr(agent_module, name, 0.001)
    free, said = [10 * RESERVE], list[str]()
    async with Offers() as client, asyncio.timeout(patience(30)):
        agent = agent_of(client, folder, Clock(), say=said.append, free=lambda _: free[0])
        beats = asyncio.create_task(agent._heartbeats())
        noted = [await client.noted.get()]
        peer = agent._peers[LEASE.lease] = asyncio.create_task(_for_ever())
        free[0] = RESERVE - 1
        noted.append(await client.noted.get())
        await asyncio.wait([peer])
        free[0] = 10 * RESERVE
        noted += [await client.noted.get() for _ in range(2)]
        await cancelled(beats)

    assert noted == ["posted", "withdrawn", "withdrawn", "posted"]
    assert peer.cancelled() and LEASE.lease in agent._done  # nobody speaks for it
    told = [line for line in said if "disk" in line]
    assert told[0].startswith("the disk is full: 256 MB are free") and "peers leave" in told[0]
    assert told[1].startswith("over after 0:00:00: the disk is full") and len(told) == 2


async def test_heartbeats__restarted_with_another_share_while_leased__offers_when_that_is_over(
    folder: ProviderFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "HEARTBEAT_SECONDS", 0.001)
    said: list[str] = []
    async with Offers() as client, asyncio.timeout(patience(30)):
        before = agent_of(client, folder, Clock(), say=said.append)
        await before._post_offer()
        client.leases = (LEASE,)

        agent = agent_of(client, folder, Clock(), say=said.append)
        share, agent.ask = agent.ask, replace(agent.ask, memory_bytes=1)
        beats = asyncio.create_task(agent._heartbeats())
        noted = [await client.noted.get() for _ in range(3)]
        client.leases, agent.ask = (), share  # which is what the withdrawn offer says
        noted.append(await client.noted.get())
        noted.append(await client.noted.get())
        await cancelled(beats)

    assert noted == ["posted", "withdrawn", "posted", "withdrawn", "posted"]
    assert "goes on with its lease" in said[1] and said[2].startswith("offering at")


async def test_follow__lease_was_accepted_with_another_torch__its_peer_does_not_start(
    folder: ProviderFolder,
) -> None:
    said: list[str] = []
    lease = LEASE.model_copy(update={"state": "active"})
    async with Beats(set()) as client:
        agent = agent_of(client, folder, Clock(), say=said.append)
        accept = agent._lease_accept(lease, make_session("peer"))
        save_accept(folder.lease(lease.lease), agent.wallet.sign(accept, NOWHERE.domain))
        agent.ask = replace(agent.ask, device_class="cpu/x86_64/AVX2/torch-2.13.0")
        await agent._follow((lease,))
        heard = client.heard

    assert "the lease is of a cpu, and this machine computes as a cpu/x86_64/AVX2" in said[0]
    assert (heard, agent._peers, len(said)) == ([], {}, 1)


async def test_back__stake_was_bonded_with_another_torch__is_not_bonded_again_nor_audited(
    folder: ProviderFolder,
) -> None:
    client, said = Bonds(), list[str]()
    async with client:
        for own in ("cpu", "cuda/A/torch-2.13.0"):
            agent = agent_of(client, folder, Clock(), say=said.append, chain=OwnChain(free=5))
            agent.outside.device_class = own
            await agent.outside._back(asked(5))
        await agent.outside._listed((SPEC.job(),), print)

    assert len(client.sent) == 1 and agent.outside.auditors == {}
    assert [line for line in said if "computes as a cuda/A" in line]


async def test_paid__market_names_jobs__only_those_with_our_bond_and_a_limit_are_audited(
    folder: ProviderFolder,
) -> None:
    said, chain = list[str](), OwnChain()
    save_signed(folder.audit(SPEC.job()), make_wallet("poster").sign(SPEC, NOWHERE.domain))
    found = []
    async with Bonds() as client:
        agent = agent_of(client, folder, Clock(), say=said.append, chain=chain)
        for channel in (
            Channel(limit=9),
            Channel(stake=5),
            Channel(stake=5, limit=9),
            Channel(stake=5, limit=9, end=7),
        ):
            chain.channel = channel
            found.append(await agent.outside._paid((SPEC.job(), JobId(b"k" * 32))))
        chain.channel = Channel(stake=5, limit=9)
        save_pay(folder.audit(SPEC.job()), sealed(3, 9, spec=SPEC))
        found.append(await agent.outside._paid((SPEC.job(),)))

    assert found == [(), (), (SPEC.job(),), (), ()]
    assert "may draw us, and could not pay" in said[0]


class Accepts(AnsweringMarket):
    """A market that keeps what binds us; its job reports a step a minute, if any."""

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self.reports = [SimpleNamespace(step=step, at=60_000 * step) for step in steps]
        self.accepted: list[AcceptLease] = []

    async def get_job(self, job: JobId) -> JobView:
        """Only what was reported."""
        return cast(JobView, SimpleNamespace(reports=self.reports))

    async def post_accept(self, body: AcceptLease, lease: Digest) -> None:
        """Keep it."""
        self.accepted.append(body)


def reserved(stake: int = 5) -> LeaseView:
    signed = make_wallet("poster").sign(SPEC, NOWHERE.domain).encoded()
    return LEASE.model_copy(
        update={"state": "reserved", "job": SPEC.job(), "spec": signed, "stake": BaseUnits(stake)}
    )


async def test_follow__lease_asks_for_stake__is_accepted_with_a_bond_unless_it_is_bonded(
    folder: ProviderFolder,
) -> None:
    async with Accepts() as client:
        for chain in (OwnChain(free=5), OwnChain(channel=Channel(stake=5))):
            agent = agent_of(client, folder, Clock(), chain=chain)
            await agent._follow((reserved(),))

    first, second = client.accepted
    assert first.bond is not None and second.bond is None and first.accept == second.accept
    assert expect(decode_signed(first.bond), Bond).message.stake == 5
    [job] = jobs_in(folder.home)
    assert job.spec == SPEC


async def test_follow__pay_would_vest_after_tail__lease_is_not_accepted(
    folder: ProviderFolder,
) -> None:
    said: list[str] = []
    async with Accepts(1, 2) as client:
        agent = agent_of(client, folder, Clock(), say=said.append, chain=OwnChain(free=5))
        await agent._follow((reserved(),))

    assert client.accepted == [] and "a TAIL of" in said[0]


async def test_keep_within_limits__limit_comes_and_account_ends__peer_starts_and_leaves(
    folder: ProviderFolder,
) -> None:
    clock, said, chain = Clock(), list[str](), OwnChain()
    lease = reserved().model_copy(update={"state": "active"})
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = agent_of(client, folder, clock, say=said.append, chain=chain)

        def start(lease: LeaseView) -> None:
            agent._peers[lease.lease] = asyncio.create_task(_for_ever())

        agent._ensure_peer_running = start  # type: ignore[method-assign]

        async def look() -> int:
            clock.now += PATIENCE_SECONDS
            await agent._keep_within_limits(lease)
            for _ in range(2):  # a peer that leaves has gone
                await asyncio.sleep(0)
            return len(agent._peers)

        before = [await look() for _ in range(2)]
        chain.channel = Channel(limit=10**12, stake=5)
        there = await look()
        chain.channel = Channel(limit=10**12, stake=5, end=7)
        after = await look()

    assert (before, there, after) == ([0, 0], 1, 0) and agent._leaving == set()
    assert "no work comes in job" in said[0] and "are confirmed" in said[0]
    assert "our peer leaves job" in said[-1] and "our account has ended there" in said[-1]


@pytest.mark.parametrize("shown", ["as accepted", "as another job", "not at all"])
async def test_follow__market_shows_the_lease_of_a_peer_otherwise__its_limit_is_looked_at_still(
    folder: ProviderFolder, shown: str
) -> None:
    clock, said, chain = Clock(), list[str](), OwnChain()
    chain.channel = Channel(limit=10**12, stake=5)
    lease = reserved().model_copy(update={"state": "active"})
    async with Beats(set()) as client:
        agent = agent_of(client, folder, clock, say=said.append, chain=chain)
        agent._keep_peer = lambda *_: _for_ever()  # type: ignore[method-assign]
        agent._adopt = lambda _: None  # type: ignore[method-assign, assignment]
        save_signed(agent.folder.lease(lease.lease), make_wallet("poster").sign(SPEC, DOMAIN))
        note_settled(agent.folder.lease(lease.lease))  # the market showed no lease for a moment
        await agent._follow((lease,))
        assert [each.job for each in jobs_in(folder.home, unsettled=True)] == [lease.job]
        peer = agent._peers[lease.lease]
        chain.channel = Channel(limit=0, stake=5)
        clock.now += PATIENCE_SECONDS
        now = {
            "as accepted": [lease.model_copy(update={"state": "accepted"})],
            "as another job": [lease.model_copy(update={"job": JobId(b"k" * 32)})],
            "not at all": [],
        }[shown]
        await agent._follow(tuple(now))
        await agent._look_at_limits()
        await asyncio.wait([peer], timeout=patience(5))

    assert peer.cancelled() and "leaves no room for 2 rounds" in said[-1]
    assert not agent._started and not agent._peers


async def test_follow__quit_that_we_signed_still_counts__we_work_there_no_more(
    folder: ProviderFolder,
) -> None:
    said, chain = list[str](), OwnChain(free=5, channel=Channel(limit=10**12, stake=5))
    quit_there = Quit(
        job=SPEC.job(), account=make_wallet("ann").account, keep=BaseUnits(9),
        by=UnixSeconds(chain.now + 50),
    )  # fmt: skip
    save_signed(folder.lease(Digest(b"q" * 32)), make_wallet("ann").sign(quit_there, DOMAIN))
    active = reserved().model_copy(update={"state": "active"})
    async with Accepts() as client:
        agent = agent_of(client, folder, Clock(), say=said.append, chain=chain)
        await agent._follow((reserved(),))
        was_accepted = bool(client.accepted)
        idle = [await agent._why_idle(active)]
        chain.now += 51
        await agent._follow((reserved(),))
        idle.append(await agent._why_idle(active))

    assert not was_accepted and client.accepted and "Quit that we have signed" in said[0]
    assert idle == [Idleness(HAS_QUIT), None]


async def test_look_at_limits__lease_ends_with_the_job_closed__peer_leaves_and_it_is_told(
    folder: ProviderFolder,
) -> None:
    clock, said, chain = Clock(), list[str](), OwnChain()
    chain.channel = Channel(limit=10**12, stake=5)
    lease = reserved().model_copy(update={"state": "active"})
    async with Accepts(5) as client:
        agent = agent_of(client, folder, clock, say=said.append, chain=chain)
        agent._active = agent._started = {lease.lease: lease}
        agent._peers[lease.lease] = asyncio.create_task(_for_ever())

        await agent._follow(())
        await agent._look_at_limits()
        goes_on = lease.lease in agent._peers
        clock.now += LOOK_SECONDS
        chain.budget = Budget(closed_at=7)
        await agent._look_at_limits()
        for _ in range(2):  # it has gone
            await asyncio.sleep(0)
        clock.now += LOOK_SECONDS
        chain.budget = Budget()
        await agent._look_at_limits()

    assert goes_on and agent._peers == {}
    assert len(said) == 1 and "its poster has closed it" in said[0]


async def test_hold__job_that_the_disk_has_no_room_for__is_not_accepted_and_told(
    folder: ProviderFolder,
) -> None:
    clock, said = Clock(), list[str]()
    lease = reserved()
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = agent_of(client, folder, clock, say=said.append, free=lambda _: RESERVE + 1)
        await agent._follow((lease,))
        lacks = agent.room.lacks()
        clock.now = PAUSE
        later = agent.room.lacks()

    assert "the job may take" in said[0] and len(said) == 1
    assert lacks is not None and "no room for the job that was matched" in lacks
    assert later is None  # other jobs ask for less
