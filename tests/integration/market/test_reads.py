"""What the paths that many providers use ask of chain and storage."""

import pytest

from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.domain.offers import Candidate
from market.fakes.memory import MemoryStore, MemoryWork
from market.fakes.memory_chain import MemoryChain
from market.service import clear_jobs
from market.service.candidates import candidates
from market.service.ports import AccountNow, StakeNow, UnitOfWork
from market.service.post_offer import post_offer
from tests.integration.market.test_rounds import funded_job
from tests.support.history import DOMAIN, START
from tests.support.market_world import ANCHORER, World


class CountedChain(MemoryChain):
    """Notes what is read of accounts."""

    def __init__(self) -> None:
        super().__init__(DOMAIN, ANCHORER, now=START)
        self.reads: list[str] = []

    async def account(self, account: Address) -> AccountNow:
        """See `Chain.account`: five values."""
        self.reads.append("account")
        return await super().account(account)

    async def stake_of(self, account: Address) -> tuple[int, StakeNow]:
        """See `Chain.stake_of`: one value."""
        self.reads.append("stake")
        return await super().stake_of(account)


@pytest.fixture
def chain() -> CountedChain:
    return CountedChain()


@pytest.fixture
def counted(chain: CountedChain) -> World:
    """A market on it."""
    store = MemoryStore()
    return World(lambda: MemoryWork(store), lambda: MemoryWork(store, reads=True), chain=chain)


async def test_post_offer__account_is_new__reads_its_stake_and_nothing_else(
    counted: World, chain: CountedChain
) -> None:
    await counted.stake("ann")
    signed = counted.sign_offer("ann", 10**11)

    await post_offer(signed.encoded(), counted.now, counted.new_work(), counted.ports)

    assert chain.reads == ["stake"]


async def test_post_offer__stake_is_known__reads_nothing_of_the_chain(
    counted: World, chain: CountedChain
) -> None:
    await counted.stake("ann")
    await counted.sync()
    chain.reads.clear()

    for nonce in range(3):
        signed = counted.sign_offer("ann", 10**11, nonce=nonce)
        await post_offer(signed.encoded(), counted.now, counted.new_work(), counted.ports)

    assert chain.reads == []


async def test_clear__several_jobs_wait__offers_are_read_once(
    counted: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[int]()

    async def noted(now: UnixMillis, work: UnitOfWork) -> list[Candidate]:
        found = await candidates(now, work)
        reads.append(len(found))
        return found

    monkeypatch.setattr(clear_jobs, "candidates", noted)
    await counted.register()
    for name, price in (("ann", 10**11), ("bob", 2 * 10**11)):
        await counted.offer(name, price)
    for nonce in range(4):
        await funded_job(counted, nonce=nonce)

    leases = await counted.clear()

    assert (len(leases), reads) == (2, [2])
