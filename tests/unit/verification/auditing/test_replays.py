"""Is a peer-step that is repeated beside our own work the one that was committed to?"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Buffer

from contracts.terms.errors import Malformed, NotFound, Unavailable, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.work import WorkClaim
from tests.support.dockets import CheckedJob
from tests.support.fakes.counting import CountingCompute, CountingReplay, CountingReplayer
from training.telling import Tell, tell_nobody
from training.worker.engine import Engine
from training.worker.ports import Passed, ReplayedUnit, Replayer
from training.worker.turns import PATIENCE, Rank
from verification.auditing.replays import RunningReplay, replaying
from verification.distances.thresholds import projections_allowed

STEP, SEED, OTHER_SEED = StepNumber(2), bytes(32), bytes(range(32))
UNITS = [ItemNumber(number) for number in (4, 0, 7)]
STAGES = 3


def compute_of(stage: int) -> CountingCompute:
    return CountingCompute(2, stage, STAGES)


def tensors(unit: ItemNumber) -> tuple[bytes, bytes]:
    """x and dy of a unit for the middle stage."""
    first, last = compute_of(0), compute_of(2)
    x = first.forward(STEP, unit, None).y
    assert x is not None
    dy = last.forward(STEP, unit, x.data).dx
    assert dy is not None
    return x.data, dy.data


def claim(compute: CountingCompute) -> list[Passed]:
    """The units of the middle stage, as its peer computed them."""
    return [compute.backward(STEP, unit, *tensors(unit)) for unit in UNITS]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The one thread that computes."""
    engine = Engine()
    yield engine
    await engine.close()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Those of the middle stage at its first state."""
    file = tmp_path / "some.weights"
    compute = compute_of(1)
    compute.save_weights(file, compute.roots())
    return file


def claim_on(root: Digest) -> WorkClaim:
    """A claim of the middle stage, on a state with this root."""
    return CheckedJob().commit("ann").model_copy(update={"base": root, "round": STEP, "group": 1})


@asynccontextmanager
async def begun(
    engine: Engine,
    weights: Path,
    seed: bytes = SEED,
    *,
    root: Digest | None = None,
    replayer: Callable[[], Replayer] | None = None,
    tell: Tell = tell_nobody,
) -> AsyncIterator[RunningReplay]:
    base = claim_on(root or compute_of(1).roots().state)
    make = replayer or compute_of(1).replayer
    async with replaying(engine, make, weights, base, seed, tell=tell) as replay:
        yield replay


async def test_replay__honest_work__every_digest_of_the_claim(
    engine: Engine, weights: Path
) -> None:
    peer = compute_of(1)
    claimed = claim(peer)

    async with begun(engine, weights) as replay:
        found = [await replay.item(unit, *tensors(unit)) for unit in UNITS]
        gradient = await replay.gradient()

    assert [(each.x, each.y, each.dx, each.loss) for each in found] == [
        (each.x, each.y, each.dx, each.loss) for each in claimed
    ]
    assert gradient == peer.gradient()


async def test_replay__our_own_step_is_in_work__is_as_it_was(engine: Engine, weights: Path) -> None:
    ours = compute_of(1)
    claim(ours)
    before, units = ours.gradient(), ours.units

    async with begun(engine, weights, replayer=ours.replayer) as replay:
        await replay.item(ItemNumber(4), *tensors(ItemNumber(4)))

    assert (ours.gradient(), ours.units) == (before, units)


async def projections(
    engine: Engine, weights: Path, units: list[ItemNumber], seed: bytes = SEED
) -> list[int]:
    async with begun(engine, weights, seed) as replay:
        return [(await replay.item(unit, *tensors(unit))).projection for unit in units]


async def test_replay__projections__repeat_and_tell_units_and_seeds_apart(
    engine: Engine, weights: Path
) -> None:
    found = await projections(engine, weights, UNITS)

    assert found == await projections(engine, weights, UNITS)
    assert len(set(found)) == len(UNITS)
    for other in (
        await projections(engine, weights, UNITS, OTHER_SEED),
        await projections(engine, weights, UNITS[::-1]),
    ):
        assert abs(other[0] - found[0]) > projections_allowed(10**6) // 1000


async def test_replay__weights_of_another_state_or_none__refused(
    engine: Engine, weights: Path, tmp_path: Path
) -> None:
    for file, root, error in (
        (weights, ZERO_DIGEST, WrongBytes),
        (tmp_path / "none", compute_of(1).roots().state, Unavailable),
    ):
        with pytest.raises(error):
            async with begun(engine, file, root=root):
                raise AssertionError("it has begun")
    weights.write_text("{")
    with pytest.raises(Malformed):
        compute_of(1).roots_of_weights(weights)


async def test_replay__file_says_the_right_state_and_holds_other_weights__refused(
    engine: Engine, weights: Path
) -> None:
    other, right = compute_of(2), compute_of(1).roots()
    other.save_weights(weights, right)

    with pytest.raises(WrongBytes):
        compute_of(1).replayer().need_weights(weights, right.state)


async def test_replay__queue_is_never_empty__its_units_go_between(
    engine: Engine, weights: Path
) -> None:
    done = list[str]()

    async def work(name: str) -> None:
        async def pass_once() -> None:
            done.append(name)

        await engine.at(Rank.FORWARD, pass_once)

    async def replay_units(replay: RunningReplay) -> None:
        for unit in UNITS[:2]:
            await replay.item(unit, *tensors(unit))
            done.append("audit")

    async with begun(engine, weights) as replay, asyncio.TaskGroup() as group:
        group.create_task(replay_units(replay))
        await asyncio.sleep(0)
        for number in range(2 * PATIENCE):
            group.create_task(work(str(number)))

    first, second = (place for place, name in enumerate(done) if name == "audit")
    assert 1 < second - first <= PATIENCE + 2 < len(done) - first


async def test_replay__device_fails__unavailable_and_the_next_replay_begins(
    engine: Engine, weights: Path
) -> None:
    class Failing(CountingReplayer):
        """Without memory for the first replay."""

        failures = 1

        def begin(
            self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes
        ) -> CountingReplay:
            """See `Replayer.begin`."""
            if Failing.failures:
                Failing.failures -= 1
                raise MemoryError("no room")
            return super().begin(step, weights, state_root, seed)

    def failing() -> Failing:
        return Failing(2, 1, STAGES)

    with pytest.raises(Unavailable, match="no room"):
        async with begun(engine, weights, replayer=failing):
            raise AssertionError("it has begun")
    async with begun(engine, weights, replayer=failing) as replay:
        found: ReplayedUnit = await replay.item(UNITS[0], *tensors(UNITS[0]))

    assert found.unit == UNITS[0]


async def test_replay__what_was_sent__as_numbers_by_parameter(
    engine: Engine, weights: Path
) -> None:
    peer = compute_of(1)
    claim(peer)
    parts: list[Buffer] = [piece.data for piece in peer.gradient()]

    async with begun(engine, weights) as replay:
        (numbers,) = (await replay.parameters(parts)).values()
        y = await replay.boundary(tensors(UNITS[0])[0])
        with pytest.raises(Malformed):
            await replay.parameters(parts[:1])

    assert bytes(numbers.data) == b"".join(map(bytes, parts))
    assert (numbers.shape, y.shape) == ((12,), (1, 1, 5))


async def test_replay__breaks_off_after_a_unit__what_it_has_cost_is_told(
    engine: Engine, weights: Path
) -> None:
    told = list[tuple[str, dict[str, Any]]]()

    def tell(event: str, **fields: Any) -> None:
        told.append((event, fields))

    with pytest.raises(NotFound, match="the next x"):
        async with begun(engine, weights, tell=tell) as replay:
            await replay.item(UNITS[0], *tensors(UNITS[0]))
            raise NotFound("the next x is nowhere")

    ((event, about),) = told
    assert (event, about["step"], about["items"]) == ("replayed", STEP, 1)
    assert about["cpu_us"] == about["weights_us"] + about["passes_us"] > 0
    assert about["gradient_us"] == about["claims_us"] == 0
