"""What does an agent do about its money in a job, and does it do it once?"""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.claims import SealedPay
from contracts.governance.escrow import Budget, Channel
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused, ServiceUnreachable
from contracts.terms.escrow_messages import Quit
from contracts.terms.ids import JobId
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.typed_data import Domain
from market.bodies.money import OrderView, PayLeafView, PayView, PostOrder
from tallystick.provider.folder import (
    OwnJob,
    is_settled,
    jobs_in,
    load_signed,
    save_pay,
    save_signed,
)
from tallystick.provider.money import (
    ASK_SECONDS,
    LEAVE_SECONDS,
    ORDER_SECONDS,
    SETTLE_SECONDS,
    SHARE_OF_TAIL,
    Money,
    Position,
    next_action,
)
from tests.support.answering import AnsweringMarket
from tests.support.history import DOMAIN, make_spec, make_wallet
from tests.unit.tallystick.provider.own_chain import NOWHERE, TIMES, OwnChain
from tests.unit.tallystick.provider.test_limits import sealed, sealed_for

ANN, BOB = (make_wallet(name).account for name in ("ann", "bob"))
SPEC = make_spec()
GRANTED = Channel(limit=100, stake=5)
CLOSED = Budget(closed_at=2000)
NO_BUDGET = Budget()
QUIET: dict[str, Any] = {
    "is_live": True, "quiet_seconds": 0.0, "may_show": False, "may_bond": False,
    "now": 2000, "tail": 700, "claim_at": 10,
}  # fmt: skip
LEFT = {"is_live": False, "quiet_seconds": LEAVE_SECONDS}
LAST = {"quiet_seconds": SETTLE_SECONDS}


@pytest.mark.parametrize(
    ("what", "case", "action"),
    [
        ("nothing is sealed", {}, None),
        ("too little is due for the gas", {"earned": 9, "vested": 9}, None),
        ("much is due", {"earned": 30, "vested": 10}, "claim"),
        ("much vested above the limit", {"earned": 200, "vested": 105, "claimed": 95}, None),
        ("the last seal came", {"earned": 9, "vested": 9, "last": True}, None),
        ("and the market did not claim", {"earned": 9, "vested": 9, "last": True, **LAST}, "claim"),
        ("all is claimed", {"earned": 9, "vested": 9, "claimed": 9, "last": True, **LAST}, "quit"),
        ("left for a minute", {**LEFT, "quiet_seconds": 60.0}, None),
        ("left, and nothing is vested", {"earned": 30, "vested": 0, **LEFT}, "claim"),
        ("which is known", {"earned": 30, "shown": 30, **LEFT}, "quit"),
        ("closed, and not all may be shown", {"end": CLOSED, "may_show": True, **LAST}, "show"),
        ("somebody may have ended", {"may_show": True}, "show"),
        (
            "closed, and a round may still be sealed",
            {"end": CLOSED, **LAST, "is_live": False},
            None,
        ),
        ("closed, and our limit is not used", {"end": CLOSED, **LEFT}, "quit"),
        (
            "closed, and a lease of ours is said to go on",
            {"earned": 9, "vested": 5, "end": CLOSED, **LAST},
            "claim",
        ),
        ("TAIL is not over", {"end": CLOSED, "now": 2799, "limit": 0, **LEFT}, None),
        ("nobody released us", {"end": CLOSED, "now": 2800, "limit": 0, **LEFT}, "release"),
        ("released", {"stake": 0, "limit": 0, **LEFT}, "settled"),
        ("a bond of ours may come", {"stake": 0, "limit": 0, "may_bond": True, **LEFT}, None),
        (
            "released, and the rest may vest",
            {"stake": 0, "limit": 30, "earned": 30, "shown": 30, **LEFT},
            None,
        ),
    ],
)
def test_next_action__case_by_case(what: str, case: dict[str, Any], action: str | None) -> None:
    said = dict(case)
    channel = replace(
        GRANTED,
        claimed=said.pop("claimed", 0),
        earned=said.pop("shown", said.get("vested", 0)),
        limit=said.pop("limit", GRANTED.limit),
        stake=said.pop("stake", GRANTED.stake),
    )
    earned, vested, last = (said.pop(name, 0) for name in ("earned", "vested", "last"))
    pay = sealed(3, earned, vested, last=bool(last)) if earned else None
    at = Position(ANN, channel, said.pop("end", NO_BUDGET), pay)

    assert next_action(at, **QUIET | said) == action, what


class Orders(AnsweringMarket):
    """A market that takes orders, or is away, and shows pay."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.orders: list[Quit] = []
        self.asked = 0
        self.pay: PayView | None = None

    async def post_order(self, body: PostOrder, job: JobId) -> OrderView | None:
        """Keep it."""
        if self.error is not None:
            raise self.error
        self.orders.append(expect(decode_signed(body.signed), Quit).message)
        return None

    async def get_pay(self, job: JobId) -> PayView:
        """The newest seal."""
        self.asked += 1
        if self.pay is None:
            raise ServiceUnreachable("away")
        return self.pay


def shown(pay: SealedPay, domain: Domain = NOWHERE.domain) -> PayView:
    """As a market shows it, signed by the coordinator."""
    leaves = tuple(
        PayLeafView(account=leaf.account, earned=leaf.earned, vested=leaf.vested)
        for leaf in pay.pay
    )
    seal = make_wallet("coordinator").sign(pay.seal.message, domain)
    return PayView(job=SPEC.job(), step=seal.message.step, leaves=leaves, seal=seal.encoded())


class World:
    """One agent's money in one job, whose folder it has."""

    def __init__(self, home: Path) -> None:
        self.now, self.said, self.market = 0.0, list[str](), Orders()
        self.folder = home / "leases" / ("ab" * 32)
        self.folder.mkdir(parents=True)
        save_signed(self.folder, make_wallet("poster").sign(SPEC, NOWHERE.domain))
        self.home, self.chain = home, OwnChain(channel=GRANTED, budget=NO_BUDGET)
        self.money = Money(
            self.market, self.chain.on_chain(), TIMES, BaseUnits(10), self.said.append,
            lambda: self.now,
        )  # fmt: skip

    @property
    def jobs(self) -> list[OwnJob]:
        """What the agent looks after."""
        return jobs_in(self.home, unsettled=True)

    @property
    def sent(self) -> list[str]:
        """The kinds of transactions that were sent."""
        return [key.partition(":")[0] for key in self.chain.sent]

    @property
    def pay(self) -> SealedPay | None:
        """What it claims by."""
        [job] = self.jobs
        return job.pay(ANN)

    async def look(self, *, live: bool = False, later: float = 0.0) -> bool:
        """One look."""
        self.now += later
        return await self.money.look(self.jobs, {SPEC.job()} if live else ())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    found = World(tmp_path)
    async with found.market:
        yield found


async def test_look__job_is_over__claims_once_quits_once_and_settles(world: World) -> None:
    save_pay(world.folder, sealed(12, 40, 30, lost=10, last=True, spec=SPEC))

    await world.look(live=True)
    for _ in range(2):
        await world.look(later=SETTLE_SECONDS)
    claims = list(world.chain.sent)
    world.chain.channel = replace(GRANTED, claimed=30, earned=40)
    for _ in range(2):
        await world.look(later=SETTLE_SECONDS)
    world.chain.channel = Channel(limit=40, claimed=30, earned=40)
    is_soon = await world.look(later=SETTLE_SECONDS)

    assert len(claims) == 1 and claims[0].startswith("claim:")
    assert [each.keep for each in world.market.orders] == [30]
    assert load_signed(world.folder, Quit) is not None
    assert is_settled(world.folder) and world.jobs == [] and is_soon
    assert world.said[0] == f"claimed 0.000030 tokens of job {SPEC.job().hex()[:12]}"


@pytest.mark.parametrize("error", [ServiceUnreachable("away"), Refused("no such job"), None])
async def test_look__market_does_not_relay_a_quit__it_is_sent_by_ourselves(
    world: World, error: Exception | None
) -> None:
    world.market.error = error

    await world.look()
    for _ in range(2):
        await world.look(later=LEAVE_SECONDS)

    assert world.sent == ["quit"] and len(world.market.orders) == (error is None)
    assert LEAVE_SECONDS > ORDER_SECONDS


@pytest.mark.parametrize("kept", [None, b"damaged"])
async def test_look__left_before_the_end__takes_newer_pay_from_the_market_if_it_is_signed(
    world: World, kept: bytes | None
) -> None:
    newest = sealed(12, 40, 30, lost=10, last=True, spec=SPEC)
    if kept is not None:
        (world.folder / "pay.bin").write_bytes(kept)
    world.market.pay = shown(newest, DOMAIN)
    with pytest.raises(Refused):  # of another chain
        await world.look()
    world.market.pay = shown(newest)
    await world.look(later=1)
    assert world.market.asked == 1
    await world.look(later=ASK_SECONDS)
    found = world.pay

    assert found is not None
    assert (found.seal.message, found.pay) == (newest.seal.message, newest.pay)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_look__job_is_closed_or_others_have_ended__shows_once_what_they_earned(
    world: World, is_closed: bool
) -> None:
    leaves = [
        PayLeaf(ANN, BaseUnits(40), BaseUnits(30)),
        PayLeaf(BOB, BaseUnits(9), BaseUnits(0)),
    ]
    save_pay(world.folder, sealed_for(5, *leaves, spec=SPEC))
    world.chain.channel = replace(GRANTED, claimed=30, earned=40)
    world.chain.others[BOB] = Channel(limit=20, end=0 if is_closed else 1900)
    world.chain.budget = CLOSED if is_closed else NO_BUDGET

    await world.look(live=not is_closed)
    at_first = world.sent
    await world.look(live=not is_closed, later=TIMES.tail / SHARE_OF_TAIL)
    world.chain.others[BOB] = Channel(limit=20, earned=9, end=1900)
    for _ in range(3):
        await world.look(live=not is_closed, later=TIMES.tail / SHARE_OF_TAIL)

    assert at_first == [] and world.sent == ["show"]


@pytest.mark.parametrize(
    "false",
    [
        sealed_for(9_999_999, PayLeaf(BOB, BaseUnits(9), BaseUnits(9)), last=True, spec=SPEC),
        sealed_for(
            9_999_999,
            PayLeaf(ANN, BaseUnits(40), BaseUnits(9)),
            PayLeaf(BOB, BaseUnits(1), BaseUnits(0)),
            spec=SPEC,
        ),
        sealed(9_999_999, 40, 9, last=True, spec=SPEC),
    ],
    ids=["without us", "others lose", "last, and all that waits is lost"],
)
async def test_look__coordinator_signs_and_market_shows_less_than_we_have__nothing_is_lost(
    world: World, false: SealedPay
) -> None:
    bob = PayLeaf(BOB, BaseUnits(2), BaseUnits(0))
    ours = PayLeaf(ANN, BaseUnits(40), BaseUnits(9))
    save_pay(world.folder, sealed_for(12, ours, bob, spec=SPEC))
    world.market.pay = shown(false)
    await world.look()
    await world.look(later=LEAVE_SECONDS)
    assert world.sent == ["claim"]
    world.chain.channel = replace(GRANTED, claimed=9, earned=40)
    await world.look(later=LEAVE_SECONDS)
    world.market.pay = shown(sealed_for(13, replace(ours, vested=BaseUnits(40)), bob, spec=SPEC))
    await world.look(later=ASK_SECONDS)
    found = world.pay

    assert [each.keep for each in world.market.orders] == [40]
    assert found is not None and found.seal.message.step == 13


async def test_look__job_is_closed_and_the_market_says_that_our_lease_goes_on__is_paid_by_itself(
    world: World,
) -> None:
    save_pay(world.folder, sealed(12, 9, 5, spec=SPEC))
    world.chain.budget = CLOSED
    await world.look(live=True)
    await world.look(live=True, later=SETTLE_SECONDS)

    assert world.sent == ["claim"]
