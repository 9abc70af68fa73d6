"""What a coordinator does for its accounts on a real chain, with a market that relays, or is away.

A job of three accounts: ann and bob work, oda audits from outside.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.chain.connection import Call
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.governance.escrow import Channel
from contracts.governance.limits import REPORT_ROUNDS, Accrual
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused, ServiceUnreachable
from contracts.terms.escrow_messages import Bond, End, Grant
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from market.bodies.market import NetworkView
from tallystick.coordinator.__main__ import network_of as network_known_to
from tallystick.coordinator.limits import AWAY, PATIENCE, ChainLimits, Order
from tallystick.sdk.client import MarketClient
from tests.integration.market.open_job import COORDINATOR, open_job
from tests.support.anvil import DeployedChain, network_of
from tests.support.history import make_wallet
from training.coordinator.ports import Earner, Progress, Standings
from training.telling import tell_nobody

ANN, BOB, ODA = (make_wallet(who) for who in ("ann", "bob", "oda"))
BUDGET, STAKE, ROUND = 1_000_000, 500, 100


@dataclass
class World:
    """A job on a chain, its coordinator, and a market that a test may switch off."""

    deployed: DeployedChain
    spec: JobSpec
    folder: Path
    market: str = "relays"
    handed_in: list[Order] = field(default_factory=list)
    now: float = 0.0
    sent: int = 0

    def __post_init__(self) -> None:
        self.store = SqliteTransactions(self.folder / "coordinator.db")
        self.limits = self.started()

    def started(self) -> ChainLimits:
        """A coordinator, or another start of it: it keeps nothing."""
        chain, deployment = self.deployed.chain, self.deployed.deployment
        sender = Sender(chain, COORDINATOR, self.store, deployment.chain_id)
        return ChainLimits(
            self.deployed.contracts,
            self.spec,
            COORDINATOR,
            sender,
            self.hand_in,
            tell_nobody,
            lambda: self.now,
        )

    async def hand_in(self, order: Order) -> None:
        """The market."""
        if self.market == "away":
            raise ServiceUnreachable("no market here")
        if self.market == "refuses":
            raise Refused("no order of yours")
        self.handed_in.append(order)
        if self.market == "relays":
            await self.send(self.limits._call(order))

    async def send(self, call: Call, role: str = "relayer") -> None:
        """Run a call on the chain."""
        self.sent += 1
        await self.deployed.senders[role].send(f"test {self.sent}", call)

    async def look(self, *, limits: ChainLimits | None = None, **changed: Any) -> Standings:
        """One look of the coordinator, twice: what it sends in the first it sees in the second."""
        limits = limits or self.limits
        await limits.look(progress(**changed))
        return await limits.look(progress(**changed))

    def channel(self, found: Standings, who: Wallet) -> Channel:
        """What counts for an account."""
        return found.channels[who.account]


def earning(*, earned: int = 0, **changed: Any) -> Earner:
    return Earner(Accrual(earned, earned, 0, ROUND), STAKE, **{"works": True} | changed)


def progress(earners: dict[Address, Earner] | None = None, **changed: Any) -> Progress:
    usual: dict[str, Any] = {
        "earners": earners or {ANN.account: earning(), BOB.account: earning()},
        "rounds_left": 10,
        "seconds_a_round": 5.0,
        "seconds_of_work": 50.0,
    }
    return Progress(**usual | changed)


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A job that asks for one confirmation, or as many as a test is given."""
    numbers = {"budget": BUDGET, "burst": BUDGET, "rate": 3600, "min_stake": STAKE}
    confirmations = getattr(request, "param", 1)
    async with open_job(tmp_path, confirmations=confirmations, **numbers) as opened:
        world = World(opened.deployed, opened.spec, tmp_path)
        token, escrow = opened.deployed.contracts.token, opened.deployed.contracts.escrow
        relayer, stakes = opened.deployed.senders["relayer"].account, BaseUnits(10 * STAKE)
        await world.send(token.faucet(relayer, stakes), role="faucet")
        await world.send(token.approve(escrow.address, stakes))
        for wallet in (ANN, BOB, ODA):
            await world.send(escrow.deposit(wallet.account, BaseUnits(STAKE)))
        yield world
        world.store.close()


async def bond(world: World, *wallets: Wallet) -> None:
    now = (await world.deployed.chain.head()).timestamp
    for each in wallets:
        message = Bond(
            job=world.spec.job(),
            account=each.account,
            stake=BaseUnits(STAKE),
            by=UnixSeconds(now + 30),
        )
        signed = each.sign(message, world.deployed.deployment.domain)
        await world.send(world.deployed.contracts.escrow.bond(signed))


@pytest.mark.timeout(120)
async def test_look__accounts_come_and_work__limits_follow_their_bonds_and_their_pay(
    world: World,
) -> None:
    found = await world.look()
    assert world.handed_in == [], "nobody has a bond yet"
    assert world.channel(found, ANN) == Channel()

    await bond(world, ANN)
    found = await world.look()
    assert world.channel(found, ANN) == Channel(limit=14 * ROUND, stake=STAKE)
    assert world.channel(found, BOB) == Channel()

    await bond(world, BOB, ODA)
    everybody = {
        ANN.account: earning(earned=8 * ROUND),
        BOB.account: earning(),
        ODA.account: earning(is_outside=True),
    }
    found = await world.look(earners=everybody)
    assert world.channel(found, ANN).limit == (8 + 14) * ROUND
    assert world.channel(found, BOB).limit == 14 * ROUND
    assert world.channel(found, ODA).limit == REPORT_ROUNDS * ROUND
    assert found.budget.committed == (22 + 14 + REPORT_ROUNDS) * ROUND

    signed = len(world.handed_in)
    await world.look(earners=everybody)
    await world.look(limits=world.started(), earners=everybody)
    assert len(world.handed_in) == signed, "what is high enough stays, also after a restart"

    gone = everybody | {BOB.account: earning(works=False, is_gone=True)}
    found = await world.look(earners=gone)
    assert world.channel(found, BOB).end and not world.channel(found, ANN).end
    assert [type(each.message) for each in world.handed_in].count(End) == 1

    over = gone | {ANN.account: earning(earned=30 * ROUND)}
    found = await world.look(earners=over, is_over=True)
    assert world.channel(found, ANN).limit == 30 * ROUND, "what it earned, and no more"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("market", ["away", "refuses", "keeps it"])
async def test_look__market_does_not_relay__waits_for_a_while_and_sends_itself(
    world: World, market: str
) -> None:
    await bond(world, ANN)
    world.market = market
    await world.deployed.anvil.fund(world.deployed.chain, COORDINATOR.account)
    assert world.channel(await world.look(), ANN).limit == 0

    patience = PATIENCE if market == "keeps it" else AWAY
    world.now = patience / 2
    assert world.channel(await world.look(), ANN).limit == 0
    world.now = patience + 1

    assert world.channel(await world.look(), ANN).limit == 14 * ROUND


@pytest.mark.timeout(120)
async def test_look__nobody_relays_and_it_has_no_gas__goes_on_and_is_heard_when_somebody_does(
    world: World,
) -> None:
    await bond(world, ANN)
    world.market = "away"
    for _ in range(3):
        world.now += PATIENCE + 1
        assert world.channel(await world.look(), ANN).limit == 0

    world.market = "relays"
    assert world.channel(await world.look(), ANN).limit == 14 * ROUND
    (grant,) = world.handed_in
    assert isinstance(grant.message, Grant) and isinstance(grant, Signed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [3], indirect=True)
async def test_look__job_asks_for_confirmations__what_is_on_top_of_the_chain_does_not_count(
    world: World,
) -> None:
    await bond(world, ANN)

    async def look() -> Channel:
        return world.channel(await world.limits.look(progress()), ANN)

    assert await look() == Channel()
    for _ in range(2):
        await world.deployed.chain.request("evm_mine", [])
    assert (await look()).stake == STAKE


class Market:
    """Says once what its network is, and is gone."""

    def __init__(self, network: NetworkView) -> None:
        self.answers = [network]

    async def call(self, route: Any) -> NetworkView:
        """See `MarketClient.call`."""
        if not self.answers:
            raise ServiceUnreachable("no market here")
        return self.answers.pop()


@pytest.mark.timeout(120)
async def test_network_of__market_is_away_when_it_starts_again__is_what_it_said_before(
    world: World,
) -> None:
    market = Market(await network_of(world.deployed))

    first = await network_known_to(cast(MarketClient, market), world.folder)
    again = await network_known_to(cast(MarketClient, market), world.folder)

    assert first == again and again.contracts.escrow == world.deployed.deployment.escrow
