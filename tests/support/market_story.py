"""The story of `checked_history` in a market: real leases, batches, beacons, limits and claims.

Three providers work, two auditors stand outside, everything is drawn. `Story.work` and `Story.idle`
seal one more step and let the market tick; beacons are those of the market's own anchor chain. So a
history has matches, a missed report, missing data, a lie that is convicted and confirmed, and its
pay waits, is frozen, forfeited, vests, and is claimed.
"""

from dataclasses import dataclass, field
from typing import Any

from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.ids import Digest, JobId, PeerId, StepNumber
from contracts.terms.messages import MILLION, LeaseAccept, StepBeacon
from contracts.terms.work import Verdict
from market.bodies.anchors import AnchoredStepView
from market.service.auditors import list_of_job
from market.service.rows import LeaseRow
from market.service.show_beacons import beacons_of_job
from tests.integration.market.test_auditors import AUDIT
from tests.support.checked_history import CheckedMaker, Said, by_auditor
from tests.support.dockets import LIMIT
from tests.support.history import JobMaker, make_session, make_wallet
from tests.support.market_world import LeasedMaker, World, market_spec, spec_changes
from verification.docket import begin_job
from verification.draws.cases import Case

WORKERS, OUTSIDE = ("ann", "bob", "cem"), ("out1", "out2")
PRICE = 10**11
DRAWN = AUDIT.model_copy(
    update={
        "floor": MILLION,
        "sums": MILLION,
        "repeats": MILLION // 2,
        "deadline": 2,
        "price": PricePerPflop(PRICE // 2),
        "budget": BaseUnits(10**9),
    }
)
FAR = 2**50
"""A distance that no threshold lets through."""


@dataclass
class StoryMaker(LeasedMaker, CheckedMaker):
    """What is said in the story, by the leases and with the beacons of a market."""

    listed: AuditorList = field(default_factory=lambda: AuditorList(auditors=()))
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec_changes, self.begin, self.outside = self.changes, begin_job, self.listed
        sessions = [*map(_audit_session, OUTSIDE), *(member.session for member in self.members)]
        self.sessions: dict[PeerId, Session] = {each.peer: each for each in sessions}
        self.anchored: dict[int, AnchoredStepView] = {}
        self._held: dict[PeerId, tuple[Digest, ...]] = {}
        JobMaker.__post_init__(self)
        assert self.spec.rules.audit is not None
        self.audit = self.spec.rules.audit

    def beacons(self) -> list[StepBeacon]:
        """The beacons that the market knows, as far as they come in order."""
        found: list[StepBeacon] = []
        for step in self.docket.undrawn:
            known = self.anchored.get(step)
            if known is None or known.beacon is None:
                break
            found.append(_step_beacon(self, step, known, known.beacon))
        return found

    def distances(self, case: Case, found: Verdict, *, is_repeat: bool) -> tuple[int, ...]:
        """See `CheckedMaker.distances`; the shipped table decides."""
        made_up = super().distances(case, found, is_repeat=is_repeat)
        return tuple(FAR if each > LIMIT else 0 for each in made_up)


@dataclass
class Story:
    """A job in a market, and how it goes on."""

    world: World
    maker: StoryMaker
    sent: int = 1  # items that the market has; the spec it has from its poster

    @property
    def job(self) -> JobId:
        """Its id."""
        return self.maker.spec.job()

    async def work(self, steps: int = 1) -> None:
        """Steps with units."""
        for _ in range(steps):
            await self._seal(works=True)

    async def idle(self, *, last: bool = False) -> None:
        """A step that only lets time pass."""
        await self._seal(works=False, last=last)

    async def clear_up(self) -> None:
        """Empty steps until nothing is open, and the last seal."""
        for _ in range(30):
            if self.maker.docket.is_clear:
                break
            await self.idle()
        await self.idle(last=True)

    async def pass_time(self, seconds: int = 10) -> None:
        """Let the market go on."""
        self.world.wait(seconds)
        await self.world.tick()

    async def _seal(self, *, works: bool, last: bool = False) -> None:
        maker = self.maker
        said: Said = [*maker.beacons(), *maker.notices_due(), *maker.reports()]
        maker._held = by_auditor(said)
        items = [item for each in said for item in maker.kept(each)]
        maker.seal([*items, *(maker.step_items() if works else ())], last=last)
        await self.world.send(maker, self.sent)
        self.sent = len(maker.items)
        await self.pass_time(2)
        steps = (await beacons_of_job(self.job, self.world.new_work(), after=0, limit=500)).steps
        maker.anchored = {each.step: each for each in steps}


async def begin_story(world: World, **changed: Any) -> Story:
    """A matched job whose coordinator has opened it."""
    await world.register()
    for name in OUTSIDE:
        await world.audit(name)
    for place, name in enumerate(WORKERS):
        await world.offer(name, PRICE + place)
    values: dict[str, Any] = {
        "peers_per_stage": 3,
        "audit": DRAWN,
        "price_ceiling": PricePerPflop(2 * PRICE),
    }
    spec = market_spec(**(values | changed))
    await world.post(spec)
    await world.tick()
    leases = {row.account: row for row in await world.rows(LeaseRow, job=spec.job())}
    members = [await world.accept(name, leases[make_wallet(name).account]) for name in WORKERS]
    for name in OUTSIDE:
        await world.bond(name)
    await world.tick()
    async with world.new_work() as work:
        block, listed = await list_of_job(spec.job(), work)
    shares = dict.fromkeys((*WORKERS, *OUTSIDE), spec.budget // 5)
    await world.grant(spec.job(), **shares)
    held: dict[bytes, LeaseAccept] = {
        member.session.key: world.accept_of(
            leases[member.wallet.account], member.wallet, member.session
        )
        for member in members
    }
    maker = StoryMaker(
        name=spec.name, members=members, anchorer=world.anchorer, domain=world.domain,
        opening_block=block, leases=held, listed=listed, changes=spec_changes(spec),
    )  # fmt: skip
    return Story(world, maker)


def _audit_session(name: str) -> Session:
    return make_session(f"audit {name}")


def _step_beacon(maker: JobMaker, of: int, known: AnchoredStepView, beacon: Digest) -> StepBeacon:
    return StepBeacon(
        job=maker.spec.job(), step=maker.next_step, of=StepNumber(of),
        batch=known.root, block=known.block, beacon=beacon,
    )  # fmt: skip
