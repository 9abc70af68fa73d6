"""Is a claim of work that is computed again from bytes the one that was claimed, bit for bit?

On the same kind of device with the same number of threads, in the order of the leaves; what another
order changes stays within the tolerance that is stated here, in the gradients and in projections of
them. What other devices change is for `bench/calibration.py` to measure.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from contracts.terms.digest import digest, wire_bytes
from contracts.terms.errors import Malformed, NotFound, WrongBytes
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex
from contracts.terms.items import ranges_of
from contracts.terms.messages import CodecName
from contracts.terms.work import Leaf, Output, WorkClaim, tensor_name
from tests.numerics.pipeline import (
    BLOBS,
    FIRST,
    ITEMS,
    Line,
    Peer,
    peer_of,
    source_of,
    spec_of,
)
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import make_claim
from training.strategies.every_step.strategy import EveryStepWithTorch
from training.strategies.port import BASE, Replayed, shard_name
from verification.distances.comparison import Comparison
from verification.distances.thresholds import (
    INPUT_GRADIENT,
    LOSS,
    OUTPUT,
    Recipe,
    projections_allowed,
    stage_kinds,
)

SEED = digest("test", b"projections")
CODECS: tuple[CodecName, ...] = get_args(CodecName)
NEAR = 1e-5  # relative L2 between honest gradients of one device class in fp32


@dataclass
class Pairs:
    """Satisfies `port.Comparison`: everything that a replay compares, (claimed, replayed)."""

    items: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    claimed: Mapping[str, Tensor] = field(default_factory=dict)
    replayed: Mapping[str, Tensor] = field(default_factory=dict)

    def add(self, kind: str, claimed: Tensor, replayed: Tensor) -> None:
        """See `Comparison.add`."""
        self.items.append((kind, claimed, replayed))

    def add_gradient(self, claimed: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> None:
        """See `Comparison.add_gradient`."""
        self.claimed, self.replayed = claimed, replayed


@dataclass
class Claimed:
    """A claim of work with all that a replay reads."""

    claim: WorkClaim
    leaves: tuple[Leaf, ...]
    source: MemorySource

    def replayed(
        self, strategy: EveryStepWithTorch, *, seed: bytes = SEED
    ) -> tuple[Replayed, Pairs]:
        """What comes of it."""
        pairs = Pairs()
        work = strategy.replay(self.claim, self.leaves, self.source, seed, pairs)
        return asyncio.run(work), pairs

    def with_leaf(self, place: int, **changed: Any) -> "Claimed":
        """Another leaf in one place."""
        leaves = list(self.leaves)
        leaves[place] = leaves[place].model_copy(update=changed)
        return replace(self, leaves=tuple(leaves))


def weights_of(peer: Peer, folder: Path) -> Path:
    """The file that a peer keeps for replays of the round to come."""
    file = folder / f"{peer.stage}.weights"
    peer.state.save_weights(file, peer.state.roots())
    return file


def claim_of(
    base: Digest, stage: int, leaves: Sequence[Leaf], outputs: Sequence[Output]
) -> WorkClaim:
    return make_claim(
        "work",
        job=ZERO_DIGEST,
        peer=digest("test", b"peer"),
        previous=digest("test", b"seal"),
        round=FIRST,
        group=StageIndex(stage),
        base=base,
        items=ranges_of(leaf.item for leaf in leaves),
        leaves=claim_leaves_root(leaves),
        outputs=tuple(outputs),
    )


def claimed_by(peer: Peer, folder: Path) -> Claimed:
    """What a peer claims of all items, which are in its gradient."""
    draft = peer.strategy.commit(frozenset(ITEMS))
    outputs, shards = zip(*draft.shards, strict=True)
    source = source_of(peer.strategy.spec)
    source.given = dict(peer.source.given)
    source.given[BASE] = weights_of(peer, folder)
    source.given |= {shard_name(o.bucket): data for o, data in zip(outputs, shards, strict=True)}
    claim = claim_of(peer.state.roots().state, peer.stage, draft.leaves, outputs)
    return Claimed(claim, draft.leaves, source)


def line_of(*ends: int, moved: bool = True, device: str = "cpu", **changed: Any) -> Line:
    """All items of a step at weights that are nobody's first ones."""
    line = Line(spec_of(*ends, **changed), device=device)
    if moved:
        line.losses(ITEMS)
        line.update(FIRST, ITEMS)
    line.losses(ITEMS)
    return line


def auditor(line: Line, device: str = "cpu") -> EveryStepWithTorch:
    """Somebody who has no state of the job."""
    return EveryStepWithTorch(line.spec, BLOBS, at_once, device=device)


def flat(gradient: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in gradient.values()])


def distance(found: Tensor, claimed: Tensor) -> float:
    return float((found - claimed).norm() / claimed.norm())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cut", [(3,), (1, 2, 3)], ids=["whole", "three stages"])
def test_replay__honest_claim_of_every_stage__equals_it_bit_for_bit(
    tmp_path: Path, cut: tuple[int, ...], codec: CodecName, tied: bool
) -> None:
    line = line_of(*cut, boundary_codec=codec, tied_head=tied)

    for number, peer in enumerate(line.firsts):
        found, pairs = claimed_by(peer, tmp_path).replayed(auditor(line))

        assert found.is_computable and len(found.projections) == len(ITEMS)
        assert all(torch.equal(claimed, own) for _, claimed, own in pairs.items)
        assert torch.equal(flat(pairs.claimed), flat(pairs.replayed))
        assert list(pairs.claimed) == list(peer.state.stage.weights())
        ends = {OUTPUT} if number + 1 < len(cut) else {LOSS}
        ends |= {INPUT_GRADIENT} if number else set()
        assert {kind for kind, _, _ in pairs.items} == ends
        kinds = stage_kinds(is_first=number == 0, is_last=number + 1 == len(cut), tied_head=tied)
        assert ends < set(kinds)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_replay__claim_of_a_gpu__equals_it_there_and_is_near_elsewhere(
    tmp_path: Path, device: str
) -> None:
    line = line_of(1, 2, 3, device="cuda")

    for peer in line.firsts:
        found, pairs = claimed_by(peer, tmp_path).replayed(auditor(line, device))

        assert found.is_computable
        compared = [*pairs.items, ("gradient", flat(pairs.claimed), flat(pairs.replayed))]
        assert all(distance(own, claimed) <= NEAR for _, claimed, own in compared)
        if device == "cuda":
            assert all(torch.equal(claimed, own) for _, claimed, own in compared)


def test_replay__the_round_in_work__keeps_its_gradient_and_its_graphs(tmp_path: Path) -> None:
    line, other = line_of(1, 2, 3, moved=False), Line(spec_of(1, 2, 3))
    middle, wanted = other.firsts[1], line.firsts[1].shards(ITEMS)
    other.source.given = line.source.given
    for item in ITEMS[:2]:
        middle.run(item, "forward")

    claimed_by(line.firsts[1], tmp_path).replayed(middle.strategy)

    assert middle.state.stage.keeps(ITEMS[0]) and middle.state.stage.units == ()
    for item in ITEMS:
        middle.run(item, "backward")
    assert middle.shards(ITEMS) == wanted


def test_replay__items_in_another_order__gradient_and_last_projection_within_the_tolerance(
    tmp_path: Path,
) -> None:
    line = line_of(1, 2, 3)

    for peer in line.firsts:
        work = claimed_by(peer, tmp_path)
        first, _ = work.replayed(auditor(line))
        turned = replace(work, leaves=tuple(work.leaves[place] for place in (2, 0, 3, 1)))
        second, pairs = turned.replayed(auditor(line))

        assert 0 < distance(flat(pairs.replayed), flat(pairs.claimed)) <= NEAR
        apart = abs(first.projections[-1] - second.projections[-1])
        assert apart <= projections_allowed(round(NEAR * 1e9)) // 1000


def test_replay__report_without_all_of_the_work__projections_far_outside_the_tolerance(
    tmp_path: Path,
) -> None:
    line = line_of(1, 3, moved=False)
    allowed = projections_allowed(round(NEAR * 1e9)) // 1000
    honest = claimed_by(line.firsts[1], tmp_path).replayed(auditor(line))[0].projections

    # The one who replays one item and writes it down for all; who takes the weights he has now.
    lazy = [honest[0]] * len(honest)
    stale = claimed_by(line_of(1, 3).firsts[1], tmp_path).replayed(auditor(line))[0].projections

    for fake in (lazy, stale, [0] * 4):
        apart = [abs(a - b) for a, b in zip(honest, fake, strict=True)]
        assert min(apart[1:]) > 10 * allowed and median(apart[1:]) > 100 * allowed


def test_replay__lie_in_the_sent_gradient__shows_in_the_parameter_it_was_told_of(
    tmp_path: Path,
) -> None:
    line = line_of(1, 2, 3)
    work = claimed_by(line.firsts[1], tmp_path)
    output = work.claim.outputs[-1]
    name = shard_name(output.bucket)
    sent = bytearray(work.source.given[name])
    before = float(torch.frombuffer(sent, dtype=torch.float32)[-1])
    sent[-4:] = b"\x00\x00\x80\x3f"  # the last element of the stage is 1.0 now
    work.source.given[name] = bytes(sent)
    norm = output.norm_squared + round((1 - before**2) * 1e12)

    for said in (output.norm_squared, norm - 10, norm + 10):  # another norm than was said: nan
        lie = output.model_copy(update={"norm_squared": said})
        claim = claim_of(work.claim.base, 1, work.leaves, [*work.claim.outputs[:-1], lie])
        _, pairs = replace(work, claim=claim).replayed(auditor(line))
        assert all(bool(each.isnan().all()) for each in pairs.claimed.values())
    lie = output.model_copy(update={"norm_squared": _norm(bytes(sent))})
    claim = claim_of(work.claim.base, 1, work.leaves, [*work.claim.outputs[:-1], lie])
    _, pairs = replace(work, claim=claim).replayed(auditor(line))

    differing = [n for n in pairs.claimed if not torch.equal(pairs.claimed[n], pairs.replayed[n])]
    assert differing == [list(pairs.claimed)[-1]]
    for name, value in line.firsts[1].state.stage.weights().items():
        assert pairs.claimed[name].shape == value.shape


def _norm(data: bytes) -> int:
    from training.averaging.norms import norm_squared

    return norm_squared(data)


def test_replay__leaf_is_given__y_and_dx_are_those_of_another_and_not_compared(
    tmp_path: Path,
) -> None:
    line = line_of(1, 2, 3)
    work = claimed_by(line.firsts[1], tmp_path).with_leaf(1, given=True)
    for name in (tensor_name("y", 1, ITEMS[1]), tensor_name("dx", 1, ITEMS[1])):
        work.source.given[name] = b"junk"

    found, pairs = work.replayed(auditor(line))

    assert found.is_computable
    assert all(torch.equal(claimed, own) for _, claimed, own in pairs.items)


@pytest.mark.parametrize("name", ["y/1/1", "dx/1/1"])
@pytest.mark.parametrize("junk", [b"junk", None, "nan"])
def test_replay__claimed_tensor_that_nobody_can_read__is_as_far_off_as_can_be(
    tmp_path: Path, name: str, junk: bytes | str | None
) -> None:
    line = line_of(1, 2, 3)
    work = claimed_by(line.firsts[1], tmp_path)
    if junk is None:
        left = tuple(each for each in work.leaves[1].tensors if each[0] != name)
        work = work.with_leaf(1, tensors=left)
    else:
        work.source.given[name] = junk if isinstance(junk, bytes) else spoilt(work.source, name)
    comparison = Comparison(Recipe())

    replay = auditor(line).replay(work.claim, work.leaves, work.source, SEED, comparison)

    assert asyncio.run(replay).is_computable
    distances = dict(comparison.distances())
    far = {kind for kind in ("y", "dx") if distances[f"{kind}/relative_l2"]}
    assert far == {name.partition("/")[0]}


def spoilt(source: MemorySource, name: str, value: float = math.nan) -> bytes:
    """A tensor whose elements all are this value."""
    formed: bytes = source.given[name]
    num_elements = len(wire_bytes(formed)) // 4
    form = formed[: len(formed) - 4 * num_elements]
    return form + torch.full((num_elements,), value).numpy().tobytes()


@pytest.mark.parametrize("end", ["x", "dy"])
@pytest.mark.parametrize("wrong", [b"1234", "nan", "huge", None])
def test_replay__item_of_bytes_that_nobody_computes_on__is_not_computable_and_others_are(
    tmp_path: Path, wrong: bytes | str | None, end: str
) -> None:
    line = line_of(1, 3)
    number = 1 if end == "x" else 0
    work, name = claimed_by(line.firsts[number], tmp_path), "y/0/1" if end == "x" else "dx/1/1"
    if wrong is None:
        left = tuple(each for each in work.leaves[1].tensors if each[0] != name)
        work = work.with_leaf(1, tensors=left)
    elif isinstance(wrong, bytes):
        work.source.given[name] = wrong
    else:
        value = math.nan if wrong == "nan" else 1e37
        work.source.given[name] = spoilt(work.source, name, value)

    found, pairs = work.replayed(auditor(line))

    assert not found.is_computable and not pairs.claimed
    assert [projection == 0 for projection in found.projections] == [False, True, False, False]
    assert len(pairs.items) == 3 * (1 + number)
    assert all(torch.equal(claimed, own) for _, claimed, own in pairs.items)


# ------------------------------------------------------------------------------------- weights


def test_weights__two_members_with_one_state__equal_files_that_name_it(tmp_path: Path) -> None:
    files = []
    for name in ("ann", "bob"):
        peer = peer_of(spec_of(1, 3), 1)
        files.append(weights_of(peer, tmp_path / name))

    assert files[0].read_bytes() == files[1].read_bytes()
    assert peer.state.roots_of_weights(files[0]) == peer.state.roots()


def test_weights__of_another_state_or_stage_or_none__refused(tmp_path: Path) -> None:
    line = line_of(1, 3)
    first, last = (claimed_by(peer, tmp_path) for peer in line.firsts)
    elsewhere = claim_of(digest("test", b"state"), 1, last.leaves, last.claim.outputs)
    missing = replace(last, source=source_of(line.spec))
    missing.source.given = last.source.given | {BASE: tmp_path / "none"}
    mixed = replace(first, source=last.source)

    for work, error in (
        (replace(last, claim=elsewhere), WrongBytes),
        (missing, NotFound),
        (mixed, Malformed),
    ):
        with pytest.raises(error):
            work.replayed(auditor(line))


@pytest.mark.parametrize("place", [-1, -500])
def test_weights__a_bit_is_another__refused(tmp_path: Path, place: int) -> None:
    line = line_of(1, 3)
    work = claimed_by(line.firsts[1], tmp_path)
    data = bytearray(work.source.given[BASE].read_bytes())
    data[place] ^= 1
    work.source.given[BASE].write_bytes(data)

    with pytest.raises(WrongBytes, match="weights root"):
        work.replayed(auditor(line))


def test_weights__half_of_a_file__malformed(tmp_path: Path) -> None:
    line = line_of(1, 3)
    work = claimed_by(line.firsts[1], tmp_path)
    file = work.source.given[BASE]
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(Malformed):
        work.replayed(auditor(line))
