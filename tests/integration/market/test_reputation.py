"""Reputations in rows: counted once, from seals and leases, and what matching makes of them."""

from contracts.terms.ids import Address
from market.bodies.base import read_body
from market.bodies.offers import ProviderView
from market.domain.reputation import Outcome, Reputation
from market.service.fund_jobs import fund_jobs
from market.service.pass_time import lapse_leases
from market.service.reputation import count_outcomes, note_outcomes, reputations_of
from tests.integration.market.client import client_of
from tests.integration.market.test_convictions import ruled, session_of, worked
from tests.support.history import make_wallet
from tests.support.market_world import World, market_spec
from verification.draws.cases import Ruling

ANN, BOB = (make_wallet(name).account for name in ("ann", "bob"))
MATCH, MISMATCH = Outcome.MATCH, Outcome.MISMATCH


async def count(world: World, *found: tuple[Address, Outcome]) -> None:
    async with world.new_work() as work:
        await count_outcomes(found, work)


async def known(world: World, *accounts: Address) -> list[Reputation]:
    work = world.new_work()
    async with work:
        found = await reputations_of(accounts, work)
    return [found[account] for account in accounts]


async def test_clear__found_lying_and_otherwise_unknown__is_not_leased(world: World) -> None:
    await world.register()
    await world.offer("ann", 10**11)
    await world.offer("bob", 2 * 10**11)
    await count(world, (ANN, MISMATCH))
    spec = market_spec()
    await world.post(spec)
    await fund_jobs(world.now, world.new_work(), world.ports)
    await world.sync()

    (lease,) = await world.clear()

    assert lease.account == BOB


async def test_lapse__lease_that_was_not_accepted__costs_liveness_once(world: World) -> None:
    await world.register()
    await world.offer("ann", 10**11)
    await world.post(market_spec())
    await fund_jobs(world.now, world.new_work(), world.ports)
    await world.sync()
    await world.clear()
    world.wait(31)

    for _ in range(2):
        await lapse_leases(world.now, world.new_work())

    (ann,) = await known(world, ANN)
    assert (ann.missed, ann.mismatches) == (1, 0)
    assert ann.liveness < Reputation().liveness


async def test_get_provider__after_some_audits__shows_what_its_name_is_made_of(
    world: World,
) -> None:
    await world.offer("ann", 10**11)
    await count(world, *[(ANN, MATCH)] * 10, (ANN, MISMATCH), (ANN, Outcome.MISSED))

    async with client_of(world) as client:
        ann, stranger = [
            read_body(ProviderView, (await client.get(f"/providers/{each.hex()}")).content)
            for each in (ANN, BOB)
        ]

    shown = ann.reputation
    assert (shown.matches, shown.mismatches, shown.kept, shown.missed) == (10, 1, 0, 1)
    assert (shown.honesty, shown.honesty_mean, shown.liveness) == (6613, 8461, 468_750)
    assert [offer.account for offer in ann.offers] == [ANN]
    assert ann.is_matched
    assert (stranger.reputation.honesty, stranger.offers) == (500, ())


async def test_note_outcomes__newest_seal_has_rulings__accounts_of_peers_and_auditors_hear_of_it(
    world: World,
) -> None:
    maker, commit = await worked(world)
    liar, honest = maker.members[0], make_wallet("out1").account
    auditors = tuple(session_of(name).peer for name in ("out1", "out2"))
    ruling = Ruling("convicted", commit.digest(), maker.record.step, liar.session.peer, auditors)

    async with world.new_work() as work:
        await note_outcomes(ruled(maker, ruling), work)

    about, heard = await known(world, liar.wallet.account, honest)
    assert (about.mismatches, about.matches) == (1, 0)
    assert (heard.kept, heard.mismatches) == (1, 0)
