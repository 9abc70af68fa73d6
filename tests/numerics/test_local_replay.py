"""Does a replay of local steps match on another class of CPU, and does it see each lie?

Real steps of a tiny model, two items of ten steps in a claim; verdicts by the shipped thresholds.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.calibration_devices import DEFAULT, KERNELS, capability
from bench.local_residuals import LIES, liar
from contracts.terms.digest import digest
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.messages import JobSpec, LocalSpec, ShardCodecName
from contracts.terms.work import Leaf, Output, WorkClaim, tensor_name
from tests.architecture.checkout import ROOT
from tests.numerics.pipeline import FIRST, source_of, spec_of
from tests.support.dockets import audit_spec
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import make_claim
from training.config import TrainConfig
from training.models.initial import initial_weights
from training.recipes import micro
from training.stages.stage import Stage, UnitInputs
from training.strategies.local.inner import Replica
from training.strategies.local.recipe import LocalRecipe, leaf_numbers
from training.strategies.local.replay import replay_claim
from training.strategies.local.rules import GROUP
from training.strategies.local.strategy import LocalWithTorch
from training.strategies.local.trace import TracedStep
from training.strategies.port import BASE, Replayed, RoundNumber, shard_name
from training.strategies.state_files import StageState
from verification.distances.comparison import Comparison
from verification.distances.thresholds import (
    Outcome,
    decide,
    shipped_calibration,
)
from verification.verdicts import is_complete, kinds_of, recipe_of

SEED, OTHER_SEED = digest("test", b"projections"), digest("test", b"others")
STEPS = 10  # of an item; in the last one, and in some lies in all, a `liar` lies
ITEMS, OTHER_ITEMS = (ItemNumber(0), ItemNumber(3)), (ItemNumber(1), ItemNumber(2))
CODECS: tuple[ShardCodecName, ...] = ("none", "bfloat16", "seeded8", "seeded4")


def spec_under(codec: ShardCodecName, config: TrainConfig | None = None, **changed: Any) -> JobSpec:
    local = LocalSpec(
        inner_steps=STEPS, segments=2, rewarm_steps=5, outer_rate=10**6, outer_momentum=0,
        round_time=1000, quorum=1,
    )  # fmt: skip
    config = config or micro(num_steps=100)
    return spec_of(
        config.model.num_layers,
        config=config,
        tied_head=True,
        strategy="local",
        local=local,
        rows_per_unit=2 * STEPS,
        gradient_codec=codec,
        **changed,
    )


def stage_at_first(recipe: LocalRecipe) -> Stage:
    """At the weights that a job starts with."""
    return recipe.build(initial_weights(recipe.config.model, recipe.slice), "cpu", frozen={})


@dataclass
class Done:
    """What a peer did in a round, and what it says of it."""

    steps: dict[ItemNumber, tuple[TracedStep, ...]]
    difference: Tensor


def base_of(recipe: LocalRecipe) -> Digest:
    return stage_at_first(recipe).roots().state


def done(spec: JobSpec, lie: str = "", items: tuple[ItemNumber, ...] = ITEMS) -> Done:
    """A round of a peer that lies in its last step of each item."""
    recipe, source = LocalRecipe(spec), source_of(spec)
    stage = stage_at_first(recipe)
    root = stage.roots().weights
    replica: Replica = liar(stage, lie, len(items) * STEPS) if lie else recipe.replica(stage)
    replica.start(0)
    steps = {}
    for item in items:
        rows = recipe.steps(asyncio.run(source.get(tensor_name("rows", GROUP, item))))
        steps[item] = tuple(
            replica.step({item: UnitInputs(rows_RT=each)}, recipe.step_seed(root, item, number))
            for number, each in enumerate(rows)
        )
    return Done(steps, replica.difference().clone())


@dataclass
class Claimed:
    """A claim with all that a replay reads."""

    spec: JobSpec
    claim: WorkClaim
    leaves: tuple[Leaf, ...]
    source: MemorySource

    def replayed(self, seed: bytes = SEED) -> tuple[Replayed, Comparison]:
        """What comes of it."""
        found = Comparison(recipe_of(self.spec))
        work = replay_claim(
            LocalRecipe(self.spec),
            "cpu",
            dict,
            at_once,
            self.claim,
            self.leaves,
            self.source,
            seed,
            found,
        )
        return asyncio.run(work), found

    def verdict(self, claimed_by: str = "") -> Outcome:
        """Of an auditor of this class on a claim of another one."""
        replayed, found = self.replayed()
        assert replayed.is_computable and len(replayed.projections) == len(self.leaves)
        limits = shipped_calibration().thresholds(
            recipe_of(self.spec),
            kinds_of(self.spec, GROUP),
            capability(),
            claimed_by or capability(),
        )
        return decide(found.distances(), limits)


def claimed(spec: JobSpec, work: Done, folder: Path) -> Claimed:
    """What a peer claims of the first items; its leaves name the rows of these."""
    recipe, source = LocalRecipe(spec), source_of(spec)
    state = StageState(StageIndex(0), stage_at_first(recipe), 2)
    source.given[BASE] = folder / "weights"
    state.save_weights(folder / "weights", state.roots())
    base = state.roots().state
    leaves = []
    for item, steps in zip(ITEMS, work.steps.values(), strict=True):
        name = tensor_name("rows", GROUP, item)
        rows = asyncio.run(source.get(name))
        leaves.append(
            Leaf(
                item=item,
                base_round=FIRST,
                given=False,
                tensors=((name, recipe.forms.digest("rows", rows)),),
                numbers=leaf_numbers(steps),
            )
        )
    outputs = list[Output]()
    for output, shard in recipe.shards(work.difference, base, ITEMS[0]):
        outputs.append(output)
        source.given[shard_name(output.bucket)] = shard
    claim = make_claim(
        "work",
        job=ZERO_DIGEST,
        peer=digest("test", b"peer"),
        previous=digest("test", b"seal"),
        round=FIRST,
        group=GROUP,
        base=base,
        items=ranges_of(ITEMS),
        leaves=claim_leaves_root(leaves),
        outputs=tuple(outputs),
    )
    return Claimed(spec, claim, tuple(leaves), source)


@cache
def honest() -> Done:
    return done(spec_under("none"))


@cache
def others() -> Done:
    """Of a peer with other items."""
    return done(spec_under("none"), items=OTHER_ITEMS)


@pytest.mark.parametrize("codec", CODECS)
def test_replay__honest_claim__repeats_it_bit_for_bit(
    tmp_path: Path, codec: ShardCodecName
) -> None:
    work = claimed(spec_under(codec), honest(), tmp_path)

    _, found = work.replayed()

    assert is_complete(work.spec, GROUP, work.leaves)
    assert set(found.farthest()) == set(kinds_of(work.spec, GROUP))
    assert not any(distance for _, distance in found.distances())


def test_replica__of_a_checked_job__computes_alike_whatever_the_number_of_threads() -> None:
    config = micro(num_steps=100)
    # 36,000 elements of `silu`: two threads share them, and the parts end within a vector.
    model = replace(config.model, width=120, num_heads=4, ffn_width=300, sequence_length=60)
    audit = audit_spec(device_class=capability())
    spec = spec_under("none", replace(config, model=model), audit=audit)
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        found.append(done(spec).difference)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def honest_elsewhere(folder: Path) -> Done:
    """The honest work, as a CPU without vector instructions computes it."""
    file = folder / "done"
    code = f"import torch, {__name__} as own; torch.save(own.honest(), {str(file)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True, cwd=ROOT, env=os.environ | dict(KERNELS[DEFAULT]),
    )  # fmt: skip
    found: Done = torch.load(file, weights_only=False)
    return found


def test_replay__honest_claim_of_another_class__matches_under_each_codec(tmp_path: Path) -> None:
    elsewhere = honest_elsewhere(tmp_path)

    assert elsewhere != honest()
    for codec in CODECS:
        work = claimed(spec_under(codec), elsewhere, tmp_path)
        assert work.verdict(DEFAULT) == "match"


def test_resume__of_this_round_and_state__goes_on_from_there_and_of_another_begins_anew(
    tmp_path: Path,
) -> None:
    spec, file = spec_under("none"), tmp_path / "round"
    strategy, source = LocalWithTorch(spec, MemoryBlobs({}), at_once), source_of(spec)
    state = strategy.first_state(GROUP)

    def run(*items: ItemNumber) -> list[Leaf | None]:
        return [asyncio.run(strategy.run(item, "whole", source)) for item in items]

    strategy.start(state, RoundNumber(1))
    leaves = run(*ITEMS)
    shards = [data for _, data in strategy.commit(frozenset(ITEMS)).shards]
    strategy.start(state, RoundNumber(1))
    run(ITEMS[0])
    strategy.keep(file)

    strategy.start(state, RoundNumber(2))
    assert strategy.resume(file) == ()
    strategy.start(state, RoundNumber(1))
    assert [*strategy.resume(file)] == leaves[:1]
    assert run(ITEMS[1]) == leaves[1:]
    assert [data for _, data in strategy.commit(frozenset(ITEMS)).shards] == shards
    state.flat_weights.mul_(0.9)  # as after a seal
    state.updated(6)
    strategy.start(state, RoundNumber(1))
    assert strategy.resume(file) == () and run(ITEMS[0]) != leaves[:1]


def test_projections__of_another_seed__are_others(tmp_path: Path) -> None:
    work = claimed(spec_under("none"), honest(), tmp_path)

    (first, _), (other, _) = work.replayed(), work.replayed(OTHER_SEED)

    pairs = zip(first.projections, other.projections, strict=True)
    assert all(abs(one - another) > 1000 for one, another in pairs)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", LIES)
def test_replay__step_that_was_not_taken_as_said__mismatch(
    tmp_path: Path, lie: str, codec: ShardCodecName
) -> None:
    spec = spec_under(codec)

    assert claimed(spec, done(spec, lie), tmp_path).verdict() == "mismatch"


def _changed(change: Callable[[Tensor], Tensor]) -> Done:
    return replace(honest(), difference=change(honest().difference.clone()))


def _without_a_row(difference: Tensor) -> Tensor:
    difference[:32] = 0  # of the embedding of one token
    return difference


FALSE: Mapping[str, Callable[[], Done]] = {
    "all of another peer": others,
    "difference of another peer": lambda: replace(honest(), difference=others().difference),
    "difference x 1.1": lambda: _changed(lambda difference: 1.1 * difference),
    "difference x 1.02": lambda: _changed(lambda difference: 1.02 * difference),
    "a row of the embedding left out": lambda: _changed(_without_a_row),
    "difference of the first item": lambda: replace(
        honest(), difference=done(spec_under("none"), items=ITEMS[:1]).difference
    ),
    "nothing": lambda: _changed(torch.zeros_like),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", FALSE)
def test_replay__true_trace_and_other_difference__mismatch(
    tmp_path: Path, lie: str, codec: ShardCodecName
) -> None:
    assert claimed(spec_under(codec), FALSE[lie](), tmp_path).verdict() == "mismatch"


@pytest.mark.parametrize("codec", ["seeded8", "seeded4"])
def test_replay__difference_rounded_by_a_seed_of_its_makers_choice__mismatch(
    tmp_path: Path, codec: ShardCodecName
) -> None:
    """Whoever chose among seeds could have each weight rounded the way that it likes."""
    work, recipe = claimed(spec_under(codec), honest(), tmp_path), LocalRecipe(spec_under(codec))
    chosen = [*recipe.shards(honest().difference, digest("test", b"chosen"), ITEMS[0])]
    work.source.given |= {shard_name(output.bucket): shard for output, shard in chosen}
    claim = work.claim.model_copy(update={"outputs": tuple(output for output, _ in chosen)})

    assert replace(work, claim=claim).verdict() == "mismatch"


def test_replay__loss_of_an_item_that_its_steps_do_not_have__mismatch(tmp_path: Path) -> None:
    work = claimed(spec_under("none"), honest(), tmp_path)
    loss, *steps = work.leaves[1].numbers
    false = work.leaves[1].model_copy(update={"numbers": (loss * 9 // 10, *steps)})

    assert replace(work, leaves=(work.leaves[0], false)).verdict() == "mismatch"


@pytest.mark.parametrize("numbers", [(), (1,), (1,) * 12, (1,) * 101])
def test_replay__leaf_with_other_numbers__mismatch(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    work = claimed(spec_under("none"), honest(), tmp_path)
    leaves = (work.leaves[0], work.leaves[1].model_copy(update={"numbers": numbers}))

    assert is_complete(work.spec, GROUP, leaves) == (len(numbers) == 101)
    assert replace(work, leaves=leaves).verdict() == "mismatch"


@pytest.mark.parametrize("shard", [b"", bytes(5), b"\x7f" * 10_000])
def test_replay__shard_that_spells_nothing__mismatch(tmp_path: Path, shard: bytes) -> None:
    work = claimed(spec_under("seeded4"), honest(), tmp_path)
    work.source.given[shard_name(work.claim.outputs[1].bucket)] = shard

    assert work.verdict() == "mismatch"


def test_replay__row_with_a_token_outside_the_vocabulary__not_computable(tmp_path: Path) -> None:
    config = micro(num_steps=100)
    spec = spec_under("none", replace(config, model=replace(config.model, vocab_size=64)))
    steps = dict.fromkeys(ITEMS, (TracedStep(0, 0, (0,) * 8),) * STEPS)
    difference = torch.zeros(LocalRecipe(spec).num_parameters)

    replayed, _ = claimed(spec, Done(steps, difference), tmp_path).replayed()

    assert not replayed.is_computable


def test_replay__weights_from_which_nothing_finite_comes__not_computable(tmp_path: Path) -> None:
    work = claimed(spec_under("none"), honest(), tmp_path)
    stage = stage_at_first(LocalRecipe(work.spec))
    stage.flat_weights.mul_(1e30)
    state = StageState(GROUP, stage, 2)
    state.save_weights(tmp_path / "weights", state.roots())
    claim = work.claim.model_copy(update={"base": state.roots().state})

    found, comparison = replace(work, claim=claim).replayed()

    assert found == Replayed((), is_computable=False)
    assert not comparison.farthest()
