"""When does an agent end a peer or stand back, and what does it sign to audit?"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contracts.chain.contracts import Contracts
from contracts.chain.deployment import NAMES, Deployment
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import (
    Conflict,
    InsufficientStake,
    NotFound,
    ServiceUnreachable,
)
from contracts.terms.ids import NO_OFFER, Address, Digest, JobId
from contracts.terms.messages import LeaseAccept, Offer
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect
from market.bodies.auditing import BondAsked, BondView
from market.bodies.base import SignedBody
from market.bodies.network import NetworkView
from market.bodies.offers import (
    AcceptLease,
    Heartbeat,
    LeaseHeard,
    LeasesView,
    LeaseView,
    OfferStored,
    Withdrawal,
)
from tallystick.provider import agent as agent_module
from tallystick.provider.agent import WIND_DOWN_SECONDS, Agent, Ask
from tallystick.provider.coins import CoinWatches, Counts
from tallystick.provider.faults import Say
from tallystick.provider.folder import ProviderFolder, end_upload, note_upload, save_accept
from tallystick.provider.outside_audits import cancelled
from tallystick.provider.room import PAUSE, RESERVE, Free
from tallystick.sdk.client import MarketClient
from tests.support.answering import AnsweringMarket
from tests.support.history import make_session, make_spec, make_wallet
from tests.support.patience import patience

LEASE = LeaseView(
    lease=Digest(b"l" * 32), state="silent", offer=Digest(b"o" * 32), job=JobId(b"j" * 32),
    account=Address(b"a" * 20), stage=0, price=PricePerPflop(1), stake=BaseUnits(0),
    accept_ends=UnixMillis(0), spec=b"spec", accept=None, session_key=None, heard_at=None,
)  # fmt: skip
ASK = Ask(PricePerPflop(1), BaseUnits(0), "cpu", 2**30, 10**9, 10**8, 1, timedelta(days=1))
NOWHERE = Deployment(chain_id=1, block=0, **dict.fromkeys(NAMES, Address(bytes(20))))


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
) -> Agent:
    return Agent(
        client, folder, make_wallet("ann"), make_session("agent"), ASK, (), {}, say,
        monotonic=clock, free=free,
    )  # fmt: skip


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

        async def standing(deployment: Deployment) -> Signed[Offer]:
            return agent.wallet.sign(agent._new_offer(0), deployment.domain)

        agent._standing_offer = standing  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="is on another chain since we began: start again"):
            await agent._heartbeats(NOWHERE)


async def test_follow__peer_uploads_when_its_lease_is_over__is_left_alone_until_it_is_done(
    folder: ProviderFolder,
) -> None:
    clock = Clock()
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = agent_of(client, folder, clock)
        peer = asyncio.create_task(_for_ever())
        agent._peers[LEASE.lease] = peer
        note_upload(folder.lease(LEASE.lease))
        await agent._follow((), NOWHERE)

        clock.now = 10 * WIND_DOWN_SECONDS
        await agent._follow((), NOWHERE)
        was_left_alone = not peer.done()
        end_upload(folder.lease(LEASE.lease))
        await agent._follow((), NOWHERE)
    assert was_left_alone and peer.cancelled()


class Bonds(AnsweringMarket):
    """A market that fails as it is told, and keeps what it was sent."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.sent: list[bytes] = []

    async def post_auditor_bond(self, body: AcceptLease, account: Address) -> BondView:
        """Keep it."""
        self.sent.append(body.signed)
        if self.failures:
            raise self.failures.pop(0)
        accept = expect(decode_signed(body.signed), LeaseAccept).message
        return BondView(job=accept.job, account=account, stake=accept.stake, state="accepted")


def bond(job: bytes, stake: int) -> BondAsked:
    return BondAsked(job=JobId(job * 32), price=PricePerPflop(7), stake=BaseUnits(stake))


async def test_reserve__market_fails_and_the_agent_is_killed__sends_what_it_signed_first(
    tmp_path: Path,
) -> None:
    client, session = Bonds(ServiceUnreachable("away")), make_session("audit")
    asked = (bond(b"j", 5),)
    async with client:
        for _ in range(2):
            folder = ProviderFolder(tmp_path)
            agent = agent_of(client, folder, Clock())
            with contextlib.suppress(ServiceUnreachable):
                await agent.outside._reserve(asked, BaseUnits(5), session, NOWHERE)
            folder.close()

    first, second = client.sent
    said = expect(decode_signed(first), LeaseAccept).message
    assert first == second
    assert (said.job, said.price, said.stake, said.offer) == (JobId(b"j" * 32), 7, 5, NO_OFFER)
    assert (said.account, said.session_key) == (make_wallet("ann").account, session.key)


async def test_reserve__more_jobs_ask_than_is_free__promises_what_it_has(
    folder: ProviderFolder,
) -> None:
    client = Bonds(Conflict("too late"))
    asked = (bond(b"a", 4), bond(b"b", 4), bond(b"c", 2))
    async with client:
        agent = agent_of(client, folder, Clock())
        await agent.outside._reserve(asked, BaseUnits(7), make_session("audit"), NOWHERE)

    jobs = [expect(decode_signed(each), LeaseAccept).message.job for each in client.sent]
    assert jobs == [JobId(b"a" * 32), JobId(b"c" * 32)]


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
        self.has_stake = True
        self.leases: tuple[LeaseView, ...] = ()
        self._withdrawn = set[Digest]()

    async def post_offer(self, body: SignedBody) -> OfferStored:
        """Note it."""
        if not self.has_stake:
            raise InsufficientStake("0.000000 tokens of free stake, an offer needs 0.000001")
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
        beats = asyncio.create_task(agent._heartbeats(NOWHERE))
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
        await before._post_offer(NOWHERE)
        client.leases = (LEASE,)

        agent = agent_of(client, folder, Clock(), say=said.append)
        share, agent.ask = agent.ask, replace(agent.ask, memory_bytes=1)
        beats = asyncio.create_task(agent._heartbeats(NOWHERE))
        noted = [await client.noted.get() for _ in range(3)]
        client.leases, agent.ask = (), share  # which is what the withdrawn offer says
        noted.append(await client.noted.get())
        noted.append(await client.noted.get())
        await cancelled(beats)

    assert noted == ["posted", "withdrawn", "posted", "withdrawn", "posted"]
    assert "goes on with its lease" in said[1] and said[2].startswith("offering at")


async def test_heartbeats__stake_was_slashed_when_the_offer_is_renewed__the_agent_goes_on(
    folder: ProviderFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_SECONDS", "STAKE_SECONDS"):
        monkeypatch.setattr(agent_module, name, 0.001)
    said: list[str] = []
    async with Offers() as client, asyncio.timeout(patience(30)):
        agent = agent_of(client, folder, Clock(), say=said.append)
        beats = asyncio.create_task(agent._heartbeats(NOWHERE))
        noted = [await client.noted.get()]
        offer = folder.offer()
        assert offer is not None
        client.has_stake = False
        agent._paused = offer.message.digest()  # as when its share of the machine has changed
        while not any("not offered" in line for line in said):
            await asyncio.sleep(0)
        client.has_stake = True
        noted += [await client.noted.get() for _ in range(2)]
        is_running = not beats.done()
        await cancelled(beats)

    assert noted == ["posted", "withdrawn", "posted"] and is_running
    assert "free stake" in said[1] and said[-1].startswith("over after")


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
        await agent._follow((lease,), NOWHERE)
        heard = client.heard

    assert "the lease is of a cpu, and this machine computes as a cpu/x86_64/AVX2" in said[0]
    assert (heard, agent._peers, len(said)) == ([], {}, 1)


async def test_promise__stake_was_promised_with_another_torch__is_not_promised_again(
    folder: ProviderFolder,
) -> None:
    client, said = Bonds(), list[str]()
    async with client:
        for own in ("cpu", "cuda/A/torch-2.13.0"):
            agent = agent_of(client, folder, Clock(), say=said.append)
            agent.outside.device_class = own
            await agent.outside._reserve(
                (bond(b"j", 5),), BaseUnits(5), make_session("audit"), NOWHERE
            )
        coins = CoinWatches(client, cast(Contracts, None), Counts(0, 0.0), Clock())
        await agent.outside._listed((JobId(b"j" * 32),), coins, print)

    assert len(client.sent) == 1 and agent.outside.auditors == {}
    assert [line for line in said if "computes as a cuda/A" in line]


async def test_hold__job_that_the_disk_has_no_room_for__is_not_accepted_and_told(
    folder: ProviderFolder,
) -> None:
    clock, said = Clock(), list[str]()
    spec = make_spec()
    signed = make_wallet("poster").sign(spec, NOWHERE.domain).encoded()
    lease = LEASE.model_copy(update={"state": "reserved", "spec": signed})
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = agent_of(client, folder, clock, say=said.append, free=lambda _: RESERVE + 1)
        await agent._follow((lease,), NOWHERE)
        lacks = agent.room.lacks()
        clock.now = PAUSE
        later = agent.room.lacks()

    assert "the job may take" in said[0] and len(said) == 1
    assert lacks is not None and "no room for the job that was matched" in lacks
    assert later is None  # other jobs ask for less
