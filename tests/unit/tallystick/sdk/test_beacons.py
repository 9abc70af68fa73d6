"""A coordinator's beacons: asked for once each, not more often than a chain can have new ones."""

from contracts.terms.beacons import Beacon
from contracts.terms.ids import Digest, JobId, StepNumber
from market.bodies.anchors import AnchoredStepView, BeaconsView
from tallystick.sdk.process import ASK_EVERY, MarketBeacons
from tests.support.answering import AnsweringMarket

JOB, ROOT, VALUE = JobId(b"j" * 32), Digest(b"r" * 32), Digest(b"c" * 32)
FIRST = StepNumber(1)


class Anchored(AnsweringMarket):
    """A market whose first step has a beacon once it is told so; counts what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.beacon = 0, False

    async def get_beacons(self, job: JobId, after: int = 0) -> BeaconsView:
        """Answer with the first step."""
        self.asked += 1
        beacon = VALUE if self.beacon else None
        return BeaconsView(steps=(AnchoredStepView(step=FIRST, root=ROOT, block=7, beacon=beacon),))


async def test_beacon_of__no_beacon_yet__is_asked_for_again_after_a_second_and_then_known() -> None:
    clock = [0.0]
    async with Anchored() as client:
        beacons = MarketBeacons(client, JOB, monotonic=lambda: clock[0])
        for moment in (0.0, ASK_EVERY / 2, ASK_EVERY):
            clock[0] = moment
            assert await beacons.beacon_of(FIRST) is None
        client.beacon = True
        clock[0] = 3 * ASK_EVERY
        found = [await beacons.beacon_of(FIRST) for _ in range(2)]

    assert found == [Beacon(FIRST, ROOT, 7, VALUE, seal=None)] * 2
    assert client.asked == 3
