"""A coordinator's coins: asked for once each, and not more often than a chain can have new ones."""

from contracts.terms.coins import Coin
from contracts.terms.ids import Digest, JobId, StepNumber
from market.bodies.anchors import AnchoredStepView, CoinsView
from tallystick.sdk.process import ASK_EVERY, MarketCoins
from tests.support.answering import AnsweringMarket

JOB, ROOT, VALUE = JobId(b"j" * 32), Digest(b"r" * 32), Digest(b"c" * 32)
FIRST = StepNumber(1)


class Anchored(AnsweringMarket):
    """A market whose first step has a coin once it is told so; counts what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.coin = 0, False

    async def get_coins(self, job: JobId, after: int = 0) -> CoinsView:
        """Answer with the first step."""
        self.asked += 1
        coin = VALUE if self.coin else None
        return CoinsView(steps=(AnchoredStepView(step=FIRST, root=ROOT, block=7, coin=coin),))


async def test_coin_of__no_coin_yet__is_asked_for_again_after_a_second_and_then_known() -> None:
    clock = [0.0]
    async with Anchored() as client:
        coins = MarketCoins(client, JOB, monotonic=lambda: clock[0])
        for moment in (0.0, ASK_EVERY / 2, ASK_EVERY):
            clock[0] = moment
            assert await coins.coin_of(FIRST) is None
        client.coin = True
        clock[0] = 3 * ASK_EVERY
        found = [await coins.coin_of(FIRST) for _ in range(2)]

    assert found == [Coin(FIRST, ROOT, 7, VALUE, seal=None)] * 2
    assert client.asked == 3
