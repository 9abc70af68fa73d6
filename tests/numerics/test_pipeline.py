"""Is a model that is cut into stages, whose tensors travel as bytes, the model in one piece?

Losses and gradients of two and three stages against one, byte for byte where the arithmetic is the
same; whole steps of several peers a stage against the plain model (`plain.py`, of which no line is
ours); an interrupted run is one that was not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.terms.digest import formed_tensor
from contracts.terms.errors import (
    Malformed,
    NotFinite,
    NotFound,
    Refused,
    TallystickError,
    Unavailable,
    WrongBytes,
)
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import NORM_SCALE, CodecName, GradientCodecName
from contracts.terms.work import leaf_names, tensor_name
from tests.numerics.loop import items_of, rows_of
from tests.numerics.pipeline import (
    BLOBS,
    CORPUS,
    FIRST,
    ITEMS,
    NUM_CHUNKS,
    Line,
    Peer,
    peer_of,
    spec_of,
    three_layers,
)
from tests.numerics.plain import greatest_difference, plain_losses
from tests.support.fakes.memory_source import at_once, make_seal
from training.averaging.sums import vector_of
from training.config import model_spec
from training.models.parameters import EMBEDDING
from training.recipes import micro
from training.stages.torch_free import num_groups
from training.strategies.port import Shard, validation_name
from training.strategies.registry import strategy_of
from training.strategies.state_files import StageState

CUTS = [(1, 3), (2, 3), (1, 2, 3)]
FAMILIES: list[Mapping[str, Any]] = [
    {},
    {"qkv_bias": True, "rope_factor": 8.0, "rope_context": 16},
    {"qk_norm": True, "head_dim": 16, "window": 8, "full_layers": (0,)},
    {"unrotated_layers": (2,)},
]
CODECS: tuple[CodecName, ...] = ("none", "float16", "bfloat16", "blockwise8")
TOLERANCE = 1e-5  # relative, of a step's loss
TOLERANCE_16_BITS = 1e-4  # the same, where gradients travel in 16 bits; 6e-6 was seen
TOLERANCE_TIED_16_BITS = 2e-3  # with a tied head and an active clip


def whole_gradient(peers: Iterable[Peer], items: Iterable[ItemNumber] = ITEMS) -> Tensor:
    pieces = [data for peer in peers for _, data in peer.shards(items)]
    return torch.cat([vector_of(data) for data in pieces])


def weights_of(peers: Iterable[Peer]) -> dict[str, Tensor]:
    return {name: value for peer in peers for name, value in peer.state.stage.weights().items()}


@pytest.mark.parametrize("family", FAMILIES, ids=["llama", "qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pipeline__cut_into_stages__losses_and_gradients_of_the_whole(
    cut: tuple[int, ...], family: Mapping[str, Any]
) -> None:
    model = model_spec(replace(three_layers().model, **family))
    whole, line = Line(spec_of(3, model=model)), Line(spec_of(*cut, model=model))

    assert line.losses(ITEMS) == whole.losses(ITEMS)  # in 1e-6 nats

    split, expected = whole_gradient(line.firsts), whole_gradient(whole.firsts)
    assert split.numel() == expected.numel()
    assert float((split - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize("is_tied", [False, True], ids=["two heads", "tied head"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pipeline__three_steps__weights_of_the_whole_and_tied_copies_equal_after_each(
    cut: tuple[int, ...], is_tied: bool
) -> None:
    whole, line = (Line(spec_of(*ends, tied_head=is_tied)) for ends in ((3,), cut))

    for step in range(1, 4):
        whole.train([step])
        line.train([step])
        if is_tied:
            first, last = (line.peers[end][0].state.stage.weights()[EMBEDDING] for end in (0, -1))
            assert torch.equal(first, last)

    split, expected = weights_of(line.firsts), weights_of(whole.firsts)
    assert split.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(split[name], value, rtol=1e-5, atol=2e-6), name


@pytest.mark.parametrize(
    ("num_peers", "codec", "is_tied", "tolerance"),
    [
        (1, "none", False, TOLERANCE),
        (2, "none", False, TOLERANCE),
        (2, "none", True, TOLERANCE),
        (2, "bfloat16", False, TOLERANCE_16_BITS),
        pytest.param(8, "none", False, TOLERANCE, marks=pytest.mark.nightly),
        pytest.param(2, "float16", False, TOLERANCE_16_BITS, marks=pytest.mark.nightly),
        pytest.param(2, "bfloat16", True, TOLERANCE_TIED_16_BITS, marks=pytest.mark.nightly),
    ],
)
def test_pipeline__several_peers_of_three_stages__equal_the_plain_model_step_for_step(
    num_peers: int, codec: GradientCodecName, is_tied: bool, tolerance: float
) -> None:
    torch.set_num_threads(1)
    small = micro(num_steps=3)
    config = replace(
        small,
        model=replace(small.model, num_layers=3, tied_head=is_tied),
        optimizer=replace(small.optimizer, clip_norm=0.5) if is_tied else small.optimizer,
        data=replace(small.data, units_per_step=8, rows_per_unit=8),
    )
    line = Line(spec_of(1, 2, 3, config=config, gradient_codec=codec, chunks=2), num_peers)

    losses, seals = [], []
    for step in range(1, 4):
        items = items_of(config, step)
        losses.append(sum(line.losses(items)) / len(items) / 1e6)
        seals.append(line.update(step, items))
        for peers in line.peers:
            assert len({peer.state.roots() for peer in peers}) == 1

    assert all(seal.gradient_norm > 0.5 * NORM_SCALE for seal in seals), "a clip of 0.5 is active"
    assert greatest_difference(losses, plain_losses(config, rows_of(config, CORPUS))) <= tolerance


def test_pipeline__tied_head_in_one_stage__state_is_cut_and_named_as_it_always_was() -> None:
    stage = peer_of(spec_of(3, tied_head=True), 0).state.stage

    assert next(iter(stage.weights())) == EMBEDDING
    # Changes when names, order, initial values or the digest of a tied model change.
    assert stage.roots().state.hex()[:16] == "14acca2d9aab569f"


def test_strategy_of__name_of_a_job__the_same_first_state() -> None:
    spec = spec_of(1, 3)

    state = strategy_of(spec, BLOBS, at_once).first_state(StageIndex(1))

    assert state.roots() == peer_of(spec, 1).state.roots()
    with pytest.raises(Refused, match="no stage 2"):
        strategy_of(spec, BLOBS, at_once).first_state(StageIndex(2))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_pipeline__codec_between_the_stages__near_the_exact_loss(codec: CodecName) -> None:
    exact, coded = Line(spec_of(1, 2, 3)), Line(spec_of(1, 2, 3, boundary_codec=codec))

    for one, other in zip(exact.losses(ITEMS), coded.losses(ITEMS), strict=True):
        assert abs(one - other) <= 20_000  # 0.02 nats of about 5.6

    wanted, found = whole_gradient(exact.firsts), whole_gradient(coded.firsts)
    assert 0 < float((found - wanted).norm() / wanted.norm()) <= 0.1


# --------------------------------------------------------------------------------------- passes


def test_run__leaves__name_every_tensor_between_the_stages_by_one_digest() -> None:
    line = Line(spec_of(1, 2, 3))

    leaves = line.trip(ITEMS[1])

    for stage, leaf in enumerate(leaves):
        names = leaf_names(StageIndex(stage), 3, ITEMS[1])
        assert tuple(name for name, _ in leaf.tensors) == names.all
        assert (leaf.item, leaf.base_round, leaf.given) == (ITEMS[1], FIRST, False)
        for name, digest in leaf.tensors:
            if not name.startswith("rows/"):
                assert digest == line.source.digest(name)
    assert leaves[0].tensor("rows/0/1") == leaves[2].tensor("rows/2/1") != ZERO_DIGEST
    assert [len(leaf.numbers) for leaf in leaves] == [0, 0, 1]


def other_form(formed: bytes, kind: str) -> bytes:
    """A boundary tensor, which is (2, 32, 32) fp32, in another form."""
    wire = formed[-2 * 32 * 32 * 4 :]
    match kind:
        case "empty":
            return b""
        case "bare":
            return wire
        case "shape":
            return formed_tensor("float32", (2, 1024), wire)
        case "dtype":
            return formed_tensor("int64", (2, 32, 32), wire)
        case _:
            return formed[:-4]


@pytest.mark.parametrize("kind", ["empty", "bare", "shape", "dtype", "short"])
def test_run__x_of_another_form_than_the_job_says__malformed_blamed_and_nothing_counted(
    kind: str,
) -> None:
    line, name = Line(spec_of(1, 3)), tensor_name("y", 0, ITEMS[0])
    first, last = line.firsts
    first.run(ITEMS[0], "forward")
    line.source.given[name] = other_form(line.source.given[name], kind)

    with pytest.raises(Malformed) as caught:
        last.run(ITEMS[0], "whole")

    assert caught.value.data["digest"] == line.source.digest(name).hex()
    with pytest.raises(Refused, match="not of these items"):
        last.strategy.commit(frozenset({ITEMS[0]}))


def test_run__item_that_is_in_already_or_a_pass_that_the_stage_has_not__refused() -> None:
    line = Line(spec_of(1, 3))
    first, last = line.firsts
    line.trip(ITEMS[0])

    for peer, direction in ((first, "forward"), (first, "backward"), (last, "whole")):
        with pytest.raises(Refused, match="already"):
            peer.run(ITEMS[0], direction)  # type: ignore[arg-type]  # of a tuple
    with pytest.raises(Refused, match="no whole pass"):
        first.run(ITEMS[1], "whole")
    with pytest.raises(Refused, match="no forward pass"):
        last.run(ITEMS[1], "forward")


def test_run__dy_is_not_finite__is_blamed_and_what_was_counted_stays() -> None:
    line, name = Line(spec_of(1, 3)), tensor_name("dx", 1, ITEMS[1])
    first, last = line.firsts
    line.trip(ITEMS[0])
    first.run(ITEMS[1], "forward")
    last.run(ITEMS[1], "whole")
    good = line.source.given[name]
    line.source.given[name] = good[:-4] + b"\x00\x00\xc0\x7f"

    with pytest.raises(NotFinite) as caught:
        first.run(ITEMS[1], "backward")

    assert caught.value.data["digest"] == line.source.digest(name).hex()
    first.strategy.commit(frozenset({ITEMS[0]}))
    line.source.given[name] = good
    first.run(ITEMS[1], "backward")
    first.strategy.commit(frozenset(ITEMS[:2]))


def test_run__backward_after_another_x_came__goes_through_that_one() -> None:
    line, other = Line(spec_of(1, 2, 3)), Line(spec_of(1, 2, 3))
    middle, x = line.firsts[1], tensor_name("y", 0, ITEMS[0])
    other.trip(ITEMS[1])
    line.firsts[0].run(ITEMS[0], "forward")
    middle.run(ITEMS[0], "forward")
    line.source.given[x] = other.source.given[tensor_name("y", 0, ITEMS[1])]
    line.source.given[tensor_name("dx", 2, ITEMS[0])] = other.source.given["dx/2/1"]

    leaf = middle.done(ITEMS[0], "backward")

    assert leaf.tensor("y/0/0") == other.source.digest("y/0/1")
    assert torch.equal(
        whole_gradient([middle], ITEMS[:1]), whole_gradient([other.firsts[1]], ITEMS[1:2])
    )


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), Unavailable("disk full")])
def test_run__breaks_off_when_the_item_is_in__gradient_is_begun_again(error: Exception) -> None:
    line = Line(spec_of(1, 2, 3))
    middle = line.firsts[1]
    line.trip(ITEMS[0])
    for peer in line.firsts[:2]:
        peer.run(ITEMS[1], "forward")
    line.firsts[2].run(ITEMS[1], "whole")
    put = line.source.put

    def fails(name: str, data: bytes) -> Digest:
        raise error

    line.source.put = fails  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        middle.run(ITEMS[1], "backward")
    line.source.put = put  # type: ignore[method-assign]

    assert middle.state.stage.units == ()
    with pytest.raises(Refused):
        middle.strategy.commit(frozenset({ITEMS[0]}))


def test_run__evaluation__mean_of_the_whole_model_and_no_gradient() -> None:
    whole, line = Line(spec_of(3)), Line(spec_of(1, 2, 3))
    groups = [ItemNumber(group) for group in range(0, num_groups(2), 16)]

    for group in groups:
        for peer in line.firsts[:-1]:
            assert peer.run(group, "evaluate") is None
        split, one = (each.firsts[-1].done(group, "evaluate") for each in (line, whole))
        assert split.numbers == one.numbers and split.tensors == ()

    assert all(peer.state.stage.units == () for peer in line.firsts)
    with pytest.raises(Refused, match="no group"):
        whole.firsts[0].run(ItemNumber(num_groups(2)), "evaluate")
    assert validation_name(ItemNumber(3)) == "validation/3"


# ------------------------------------------------------------------------------------- exchange


def test_commit__other_items_are_in__refused_and_rebuilt_from_what_is_kept() -> None:
    line, other = Line(spec_of(1, 2, 3)), Line(spec_of(1, 2, 3))
    for item in ITEMS:
        line.trip(item)
    for item in (ITEMS[0], ITEMS[2]):
        other.trip(item)
    wanted = frozenset({ITEMS[0], ITEMS[2]})

    for peer, mate in zip(line.firsts, other.firsts, strict=True):
        with pytest.raises(Refused, match="not of these items"):
            peer.strategy.commit(wanted)
        peer.strategy.start(peer.state, FIRST)
        direction = "whole" if peer.stage == 2 else "backward"
        leaves = [peer.done(item, direction) for item in sorted(wanted)]  # type: ignore[arg-type]

        assert peer.strategy.commit(wanted).leaves == tuple(leaves)
        assert peer.shards(wanted) == mate.shards(wanted)


def test_commit__nothing_was_run__refused() -> None:
    peer = peer_of(spec_of(3), 0)

    for items in (frozenset[ItemNumber](), frozenset({ITEMS[0]})):
        with pytest.raises(Refused):
            peer.strategy.commit(items)


def test_commit__leaves__ascend_whatever_the_order_of_the_passes() -> None:
    peer = peer_of(spec_of(3), 0)
    for item in ITEMS[::-1]:
        peer.run(item, "whole")

    draft = peer.strategy.commit(frozenset(ITEMS))

    assert [leaf.item for leaf in draft.leaves] == list(ITEMS)
    outputs = [output for output, _ in draft.shards]
    assert [output.bucket for output in outputs] == list(range(NUM_CHUNKS))


def shards_of(peer: Peer) -> list[bytes]:
    peer.run(ITEMS[0], "whole")
    return [data for _, data in peer.shards(ITEMS[:1])]


def test_reduce__shards_that_are_not_those_of_the_weights__refused() -> None:
    peer = peer_of(spec_of(3), 0)
    data, one, two = shards_of(peer)[0], Digest(b"1" * 32), Digest(b"2" * 32)
    bucket, group = (StageIndex(0), ChunkIndex(0)), StageIndex(0)
    weights = {one: (group, 3), two: (group, 5)}

    def mean(*claims: Digest) -> tuple[object, bytes]:
        shards = (Shard(claim, data) for claim in claims)
        return peer.strategy.reduce(bucket, shards, weights)

    for claims in ((), (one,), (two, one), (one, two, two)):
        with pytest.raises(Refused):
            mean(*claims)
    _, found = mean(one, two)
    assert torch.allclose(vector_of(found), vector_of(data), rtol=1e-6)
    with pytest.raises(Malformed):
        peer.strategy.reduce(bucket, iter((Shard(one, data), Shard(two, data[:-4]))), weights)


@pytest.mark.parametrize("spoilt", ["short", "long", "not finite", "missing"])
def test_apply__buckets_that_do_not_fit__refused(spoilt: str) -> None:
    peer = peer_of(spec_of(3), 0)
    buckets = shards_of(peer)
    match spoilt:
        case "short":
            buckets[-1] = buckets[-1][:-4]
        case "long":
            buckets[-1] += bytes(4)
        case "missing":
            buckets.pop()
        case _:
            buckets[0] = b"\x00\x00\xc0\x7f" + buckets[0][4:]

    with pytest.raises(NotFinite if spoilt == "not finite" else Malformed):
        peer.strategy.apply(peer.state, iter(buckets), make_seal(1, NORM_SCALE))


# ---------------------------------------------------------------------------------------- states


def test_run__resumed_between_two_steps__equals_the_uninterrupted_one_in_bytes(
    tmp_path: Path,
) -> None:
    whole, cut = Line(spec_of(1, 2, 3)), Line(spec_of(1, 2, 3))
    losses = whole.train([1, 2, 3, 4])

    before = cut.train([1, 2])
    for peer in cut.firsts:
        peer.state.save(tmp_path / str(peer.stage), StepNumber(2))
    resumed = Line(spec_of(1, 2, 3))
    for peer in resumed.firsts:
        assert peer.state.restore(tmp_path / str(peer.stage)) == 2
        peer.strategy.start(peer.state, StepNumber(3))

    assert before + resumed.train([3, 4]) == losses
    for peer, other in zip(resumed.firsts, whole.firsts, strict=True):
        assert peer.state.roots() == other.state.roots()


def states(stage: int, spec_ends: tuple[int, ...] = (1, 3)) -> StageState:
    return peer_of(spec_of(*spec_ends), stage).state


def test_adopt__checkpoint_of_another_member__its_state_under_our_folder(tmp_path: Path) -> None:
    there, here, first = states(1), states(1), states(0)
    there.measure(1)
    there.save(tmp_path / "there", StepNumber(2))
    file, root = there.checkpoint(tmp_path / "there", StepNumber(2)), there.roots().state

    wrong: list[tuple[StageState, Digest, type[TallystickError]]] = [
        (here, ZERO_DIGEST, WrongBytes),
        (first, root, Malformed),
    ]
    for state, wanted, error in wrong:
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes())
        with pytest.raises(error):
            state.adopt(tmp_path / "here", StepNumber(2), copy, wanted)
    here.adopt(tmp_path / "here", StepNumber(2), copy, root)

    assert here.checkpoint(tmp_path / "here", StepNumber(2)).read_bytes() == file.read_bytes()
    assert here.oldest_kept(tmp_path / "here") == 0, "beside one the initial state counts"
    here.save(tmp_path / "here", StepNumber(4))
    assert here.oldest_kept(tmp_path / "here") == 2
    with pytest.raises(NotFound):
        here.checkpoint(tmp_path / "here", StepNumber(6))


def test_save__two_members_with_one_state__equal_files(tmp_path: Path) -> None:
    files = []
    for name in ("ann", "bob"):
        state = states(1)
        state.save(tmp_path / name, StepNumber(2))
        files.append(state.checkpoint(tmp_path / name, StepNumber(2)).read_bytes())

    assert files[0] == files[1]
