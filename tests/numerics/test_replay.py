"""Is a peer-step that is computed again from bytes the one that was claimed, bit for bit?

On the same kind of device with the same number of threads, in the order of the leaves; what another
order changes stays within the tolerance that is stated here, in the gradients and in projections of
them. What other devices change is for `bench/calibration.py` to measure.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from contracts.terms.digest import digest
from contracts.terms.errors import InvariantBroken, Malformed, NotFound, Refused, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import CodecName
from tests.numerics.pipeline import CORPUS, FIRST, NUM_CHUNKS, UNITS, Trip, spec_of, stages_of, trip
from tests.support.fakes.blobs import MemoryBlobs
from training.worker.numeric_recipe import NumericRecipe, corpus_rows
from training.worker.ports import Numbers, ReplayedUnit
from training.worker.stage_compute import StageCompute
from training.worker.stage_replay import StageReplay, StageReplayer
from verification.distances.thresholds import projections_allowed

SEED = digest("test", b"projections")
CODECS: tuple[CodecName, ...] = get_args(CodecName)
NEAR = 1e-5  # relative L2 between honest gradients of one device class in fp32


def moved_on(stages: Sequence[StageCompute]) -> None:
    """An update by the gradient of the whole step, so that the weights are nobody's first ones."""
    for stage in stages:
        stage.begin_step()
    for unit in UNITS:
        trip(list(stages), FIRST, unit)
    for stage in stages:
        stage.apply([piece.data for piece in stage.gradient()], 10**9)


def weights_of(stage: StageCompute, folder: Path) -> Path:
    """The file that a peer keeps for replays of the step to come."""
    file = folder / "kept.weights"
    stage.save_weights(file, stage.roots())
    return file


def replay_of(stage: StageCompute, folder: Path, *, seed: bytes = SEED) -> StageReplay:
    root = stage.roots().state
    return stage.replayer().begin(FIRST, weights_of(stage, folder), root, seed)


def units_of(
    replay: StageReplay, trips: Sequence[Trip], number: int, order: Sequence[int] = range(4)
) -> list[ReplayedUnit]:
    return [
        replay.unit(UNITS[place], trips[place].x[number], trips[place].dy[number])
        for place in order
    ]


def flat(replay: StageReplay | StageCompute) -> Tensor:
    pieces = [torch.frombuffer(bytearray(p.data), dtype=torch.float32) for p in replay.gradient()]
    return torch.cat(pieces)


def distance(found: Tensor, claimed: Tensor) -> float:
    return float((found - claimed).norm() / claimed.norm())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cut", [(3,), (1, 2, 3)], ids=["whole", "three stages"])
def test_replay__honest_peer_step_of_every_stage__equals_the_claim_bit_for_bit(
    tmp_path: Path, cut: tuple[int, ...], codec: CodecName, tied: bool
) -> None:
    stages = stages_of(spec_of(*cut, codec=codec, tied_head=tied))
    moved_on(stages)
    trips = [trip(stages, FIRST, unit) for unit in UNITS]

    for number, stage in enumerate(stages):
        replay = replay_of(stage, tmp_path)
        for found, made in zip(units_of(replay, trips, number), trips, strict=True):
            claimed = made.passed[number]
            y = made.x[number + 1] if number + 1 < len(stages) else None
            assert (found.x, found.dx, found.loss) == (claimed.x, claimed.dx, claimed.loss)
            assert (None if found.y is None else found.y.data) == y
        assert replay.gradient() == stage.gradient()


def test_replay__the_step_in_work__keeps_its_gradient_and_its_graphs(tmp_path: Path) -> None:
    stages, others = stages_of(spec_of(1, 2, 3)), stages_of(spec_of(1, 2, 3))
    trips = [trip(stages, FIRST, unit) for unit in UNITS]
    middle = others[1]
    middle.forward(FIRST, UNITS[0], trips[0].x[1])

    replay = replay_of(middle, tmp_path)
    units_of(replay, trips, 1)

    assert middle.keeps(UNITS[0]) and middle.units == ()
    for unit, made in zip(UNITS, trips, strict=True):
        middle.backward(FIRST, unit, made.x[1], made.dy[1])
    assert middle.gradient() == stages[1].gradient()


def test_replay__units_in_another_order__gradient_and_last_projection_within_the_tolerance(
    tmp_path: Path,
) -> None:
    stages = stages_of(spec_of(1, 2, 3))
    moved_on(stages)
    trips = [trip(stages, FIRST, unit) for unit in UNITS]

    for number, stage in enumerate(stages):
        straight, turned = (replay_of(stage, tmp_path) for _ in range(2))
        first = units_of(straight, trips, number)
        second = units_of(turned, trips, number, (2, 0, 3, 1))

        assert 0 < distance(flat(turned), flat(straight)) <= NEAR
        apart = abs(first[-1].projection - second[-1].projection)
        assert apart <= projections_allowed(round(NEAR * 1e9)) // 1000


def test_replay__twice__equal_projections_and_others_for_another_seed(tmp_path: Path) -> None:
    stages = stages_of(spec_of(1, 3))
    trips = [trip(stages, FIRST, unit) for unit in UNITS]
    honest, again, other = (
        [each.projection for each in units_of(replay_of(stages[1], tmp_path, seed=seed), trips, 1)]
        for seed in (SEED, SEED, digest("test", b"another auditor"))
    )

    assert honest == again
    assert all(
        abs(a - b) > projections_allowed(10**6) // 1000 for a, b in zip(honest, other, strict=True)
    )


def test_replay__report_without_all_of_the_work__projections_far_outside_the_tolerance(
    tmp_path: Path,
) -> None:
    stages = stages_of(spec_of(1, 3))
    trips = [trip(stages, FIRST, unit) for unit in UNITS]
    allowed = projections_allowed(round(NEAR * 1e9)) // 1000
    honest = [each.projection for each in units_of(replay_of(stages[1], tmp_path), trips, 1)]

    # The one who replays one unit and writes it down for all; who takes the weights he has now.
    lazy = [honest[0]] * len(honest)
    moved_on(stages)
    stale = [each.projection for each in units_of(replay_of(stages[1], tmp_path), trips, 1)]

    for fake in (lazy, stale, [0] * 4):
        apart = [abs(a - b) for a, b in zip(honest, fake, strict=True)]
        assert min(apart[1:]) > 100 * allowed


def test_replay__lie_in_the_sent_gradient__shows_in_the_parameter_it_was_told_of(
    tmp_path: Path,
) -> None:
    stages = stages_of(spec_of(1, 2, 3))
    trips = [trip(stages, FIRST, unit) for unit in UNITS]
    replay = replay_of(stages[1], tmp_path)
    units_of(replay, trips, 1)
    sent = [bytearray(piece.data) for piece in stages[1].gradient()]
    sent[-1][-4:] = b"\x00\x00\x80\x3f"  # the last element of the stage is 1.0 now

    found, claimed = (
        replay.parameters(parts) for parts in ([p.data for p in replay.gradient()], sent)
    )

    assert list(found) == list(stages[1].weights())
    differing = [name for name in found if bytes(found[name].data) != bytes(claimed[name].data)]
    assert differing == [list(found)[-1]]
    for name, value in stages[1].weights().items():
        assert found[name].shape == tuple(value.shape)


def test_replay__parts_of_a_tied_stage__by_parameter_in_the_order_of_its_weights(
    tmp_path: Path,
) -> None:
    stages = stages_of(spec_of(1, 3, tied_head=True))
    trips = [trip(stages, FIRST, unit) for unit in UNITS]

    for number, stage in enumerate(stages):
        replay = replay_of(stage, tmp_path)
        units_of(replay, trips, number)
        by_name = replay.parameters([piece.data for piece in replay.gradient()])

        assert len(replay.gradient()) == 2 * NUM_CHUNKS
        joined = torch.cat([tensor_of(numbers).flatten() for numbers in by_name.values()])
        expected = torch.cat([value.flatten() for value in stage.weights().values()])
        assert joined.shape == expected.shape
        assert torch.equal(joined, flat(stage))


def tensor_of(numbers: Numbers) -> Tensor:
    """As whoever compares reads them."""
    return torch.frombuffer(numbers.data, dtype=torch.float32).view(numbers.shape)


def test_replay__boundary_tensor__the_numbers_that_a_receiver_computes_with(
    tmp_path: Path,
) -> None:
    stages = stages_of(spec_of(1, 3, codec="float16"))
    made = trip(stages, FIRST, UNITS[0])
    data = made.x[1]
    assert data is not None

    found = tensor_of(replay_of(stages[1], tmp_path).boundary(data))

    assert torch.equal(
        found.flatten(), torch.frombuffer(bytearray(data), dtype=torch.float16).float()
    )


def test_replay__outside_auditor_without_a_compute__replays_alike(tmp_path: Path) -> None:
    spec = spec_of(1, 2, 3)
    stages = stages_of(spec)
    moved_on(stages)
    trips = [trip(stages, FIRST, unit) for unit in UNITS]
    file, root = weights_of(stages[1], tmp_path), stages[1].roots().state

    recipe = NumericRecipe(spec, corpus_rows(spec, MemoryBlobs(CORPUS.blobs)), StageIndex(1))
    replay = StageReplayer(recipe).begin(FIRST, file, root, SEED)
    units_of(replay, trips, 1)

    assert replay.gradient() == stages[1].gradient()


# ------------------------------------------------------------------------------------- weights


def test_weights__two_members_with_one_state__equal_files_that_name_it(tmp_path: Path) -> None:
    files = []
    for name in ("ann", "bob"):
        stage = stages_of(spec_of(1, 3))[1]
        files.append(weights_of(stage, tmp_path / name))

    assert files[0].read_bytes() == files[1].read_bytes()
    assert stage.roots_of_weights(files[0]) == stage.roots()


def test_weights__of_another_state_stage_or_none__refused(tmp_path: Path) -> None:
    first, last = stages_of(spec_of(1, 3))
    file, root = weights_of(last, tmp_path), last.roots().state

    for compute, path, wanted, error in (
        (last, file, ZERO_DIGEST, WrongBytes),
        (first, file, root, Malformed),
        (last, tmp_path / "none", root, NotFound),
    ):
        with pytest.raises(error):
            compute.replayer().begin(FIRST, path, wanted, SEED)
        with pytest.raises(error):
            compute.replayer().need_weights(path, wanted)


@pytest.mark.parametrize("place", [-1, -500])
def test_weights__a_bit_is_another__refused(tmp_path: Path, place: int) -> None:
    last = stages_of(spec_of(1, 3))[1]
    file, root = weights_of(last, tmp_path), last.roots().state
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)

    with pytest.raises(WrongBytes, match="weights root"):
        last.replayer().need_weights(file, root)


def test_weights__half_of_a_file__malformed(tmp_path: Path) -> None:
    last = stages_of(spec_of(1, 3))[1]
    file, root = weights_of(last, tmp_path), last.roots().state
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(Malformed):
        last.replayer().need_weights(file, root)


# -------------------------------------------------------------------------------------- refusals


def test_replay__unit_twice_or_without_what_it_needs__refused(tmp_path: Path) -> None:
    stages = stages_of(spec_of(1, 2, 3))
    made = trip(stages, FIRST, UNITS[0])
    replay = replay_of(stages[1], tmp_path)
    replay.unit(UNITS[0], made.x[1], made.dy[1])

    with pytest.raises(Refused):
        replay.unit(UNITS[0], made.x[1], made.dy[1])
    for x, dy in ((None, made.dy[1]), (made.x[1], None)):
        with pytest.raises(Refused):
            replay.unit(ItemNumber(1), x, dy)


@pytest.mark.parametrize("end", ["x", "dy"])
@pytest.mark.parametrize("wrong", [b"1234", "nan", "huge"])
def test_replay__unit_of_bytes_that_nobody_computes_on__has_its_rows_and_nothing_else(
    tmp_path: Path, wrong: bytes | str, end: str
) -> None:
    stages = stages_of(spec_of(1, 3))
    good, bad = trip(stages, FIRST, UNITS[0]), trip(stages, FIRST, UNITS[1])
    number = 1 if end == "x" else 0
    ends = {"x": bad.x[number], "dy": bad.dy[number]}
    value = math.nan if wrong == "nan" else 1e37
    data = torch.full((len(ends[end] or b"") // 4,), value).numpy().tobytes()
    ends[end] = wrong if isinstance(wrong, bytes) else data
    replay = replay_of(stages[number], tmp_path)

    found = replay.unit(UNITS[1], **ends)
    after = replay.unit(UNITS[0], good.x[number], good.dy[number])

    assert not found.is_finite and found.rows is not None
    assert found == ReplayedUnit(UNITS[1], found.rows, is_finite=False)
    assert after.is_finite and after.dx == good.passed[number].dx


def test_replay__parts_of_another_norm_than_was_said__wrong_bytes(tmp_path: Path) -> None:
    (whole,) = stages_of(spec_of(3))
    whole.forward(FIRST, UNITS[0], None)
    parts, replay = whole.gradient(), replay_of(whole, tmp_path)
    data, norms = [each.data for each in parts], [each.norm_squared for each in parts]

    assert replay.parameters(data, norms).keys() == whole.weights().keys()
    with pytest.raises(WrongBytes):
        replay.parameters(data, [norms[0] + 1, *norms[1:]])


def test_replay__its_stage__has_no_moments_and_cannot_be_trained(tmp_path: Path) -> None:
    (whole,) = stages_of(spec_of(3))
    stage = replay_of(whole, tmp_path)._stage

    with pytest.raises(InvariantBroken, match="no moments"):
        stage.roots()
    with pytest.raises(InvariantBroken, match="no moments"):
        stage.apply(torch.ones(stage.num_parameters), 1)
