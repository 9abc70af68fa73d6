"""Fine-tuning on chats: the mean over targets of unequal rows, whoever computed which of them.

The plain loop is `plain.py`: the losses of a batch's targets, their mean, its gradient. Rows have
from 1 to some 90 targets here, so weights by rows would be seen at once.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.terms.digest import digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, StageIndex
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.messages import JobSpec
from contracts.terms.targets import item_weights, target_counts
from contracts.terms.work import RoundClosed
from tallystick.gym.registry import MODULE, behaviour_of
from tests.numerics.loop import rows_of
from tests.numerics.pipeline import Peer, peer_of, source_of
from tests.numerics.plain import greatest_difference, mean_loss, plain_losses, tokens_of
from tests.support.chats import VOCABULARY, corpus_of_chats
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.stage_swarm import data_spec, stage_papers, stage_swarm
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from training.config import whole_model
from training.models.initial import initial_weights
from training.recipes import micro
from training.strategies.every_step.recipe import Recipe
from training.strategies.port import Shard
from verification.auditing.rerun import rerun

LENGTH, STEPS = 96, 3
CHATS = corpus_of_chats(LENGTH)
BLOBS = MemoryBlobs(CHATS.corpus.blobs)
_MICRO = micro(num_steps=STEPS)
CONFIG = replace(
    _MICRO,
    model=replace(_MICRO.model, vocab_size=VOCABULARY, sequence_length=LENGTH, num_layers=3),
    data=replace(_MICRO.data, units_per_step=8, rows_per_unit=2),
)
TOLERANCE = 1e-5  # relative, of a step's loss
GRADIENT = 1e-6  # relative L2, of a step's gradient


def papers_of(*names: str, **changed: Any) -> Any:
    """Of a job on these chats."""
    manifest = CHATS.corpus.manifest.digest()
    return stage_papers(CONFIG, manifest, *names, targets=CHATS.targets, **changed)


def finished(swarm: MemorySwarm) -> MemorySwarm:
    """From its first to its last seal."""
    torch.set_num_threads(1)
    asyncio.run(swarm.run())
    return swarm


@cache
def plain() -> tuple[list[float], float]:
    """Losses of the plain loop, and its mean over the targets of all validation rows after it."""
    torch.set_num_threads(1)
    rows, weights = rows_of(CONFIG, CHATS.corpus), initial_weights(CONFIG.model, whole())
    losses = plain_losses(CONFIG, rows, weights=weights, is_marked=True)
    every_RT = _rows(b"".join(rows.validation_rows()))
    with torch.no_grad():
        mean = mean_loss(CONFIG.model, weights, every_RT, is_marked=True)
    return losses, float(mean)


def _rows(data: bytes) -> Tensor:
    tokens = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    return torch.tensor(tokens).view(-1, LENGTH + 1)


def whole() -> Any:
    """The one stage of the plain loop."""
    return whole_model(CONFIG.model)


# ------------------------------------------------------------------------------------- whole jobs


@pytest.mark.parametrize(
    "kill", [None, ("p0", "item_done", 2), (COORDINATOR, "claim_stored", 2)], ids=str
)
def test_swarm__chats_in_three_stages__has_the_losses_of_the_plain_loop(
    tmp_path: Path, kill: tuple[str, str, int] | None
) -> None:
    names = ("p0", "p1", "p2", "p3", "p4", "p5")
    swarm = stage_swarm(tmp_path, papers_of(*names, stages=3), CHATS.corpus)
    if kill is not None:
        swarm.deadly, swarm.together = {kill: kill[0]}, True

    finished(swarm)

    losses, validation = plain()
    ours = [loss / 1e6 for _, loss in sorted(swarm.losses().items())]
    assert swarm.deadly == {} and not swarm.refused
    assert greatest_difference(ours, losses) <= TOLERANCE
    assert greatest_difference([swarm.validation()[STEPS] / 1e6], [validation]) <= TOLERANCE
    assert all(len(each) == 1 for each in swarm.state_roots())


def test_swarm__chats__claims_weigh_the_targets_of_their_rows(tmp_path: Path) -> None:
    swarm = finished(stage_swarm(tmp_path, papers_of("p0", "p1"), CHATS.corpus))
    rows = rows_of(CONFIG, CHATS.corpus)

    for closed in swarm.messages(RoundClosed):
        claims = {claim.digest(): claim for claim in swarm.claims()}
        for name, weight in closed.claims:
            tokens = tokens_of(rows, claims[name].numbers).view(-1, LENGTH + 1)
            assert weight == int((tokens[:, 1:] >= 2**31).sum())
    assert swarm.history().record is not None


def test_swarm__chats_that_are_checked__a_liar_alone_is_found_and_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    names = ("p0", "p1", "p2", "p3")
    config = replace(CONFIG, data=replace(CONFIG.data, units_per_step=len(names)))
    swarm = evidence_swarm(
        tmp_path, config, CHATS.corpus, *names, outside=("out", "oda"), targets=CHATS.targets
    )
    swarm.behaviours["p0"] = behaviour_of("scaled:from=1", swarm.papers.spec.message.rules)

    finished(swarm)

    reports = swarm.reports()
    assert set(swarm.docket().convicts) == {swarm.session_of("p0").peer}
    assert {each.claim.subject for each in reports} >= {each.digest() for each in swarm.claims()}
    outcome = asyncio.run(rerun(bundles_in(tmp_path)[0]))
    assert outcome.verdict == "mismatch" and outcome.is_confirmed


# --------------------------------------------------------------------------------- one gradient


def spec_of(*layer_ends: int) -> JobSpec:
    """A job on the chats that is cut behind these layers."""
    names = ("p0", "p1", "p2")[: len(layer_ends)]
    papers = papers_of(*names, stages=len(layer_ends))
    spec: JobSpec = papers.spec.message
    assert spec.batch.layer_ends == layer_ends
    return spec


def gradient_of(spec: JobSpec, dealt: Mapping[ItemNumber, int], lost: int) -> dict[str, Tensor]:
    """The mean gradient of items, each computed by the peer that it is dealt to.

    `lost`: so many items a first peer had done when it was lost; they are opened again.
    """
    source, weights = source_of(spec, BLOBS), item_weights(spec, CHATS.targets)
    peers = [
        [peer_of(spec, stage, source, blobs=BLOBS) for _ in range(4)]
        for stage in range(spec.batch.stages)
    ]
    for item in list(dealt)[:lost]:
        _trip([own[3] for own in peers], item)
    for item, place in dealt.items():
        _trip([own[place] for own in peers], item)
    places = sorted(set(dealt.values()))
    found = dict[str, Tensor]()
    for stage in range(spec.batch.stages):
        items = {place: [item for item in dealt if dealt[item] == place] for place in places}
        drafts = {place: peers[stage][place].shards(items[place]) for place in places}
        shares = {
            Digest(digest("test claim", bytes([place]))): (
                StageIndex(stage),
                weights.of(ranges_of(items[place])),
            )
            for place in places
        }
        pieces = []
        for bucket in spec.chunking.of_stage(StageIndex(stage)):
            shards = (
                Shard(name, drafts[place][bucket[1]][1])
                for name, place in zip(shares, places, strict=True)
            )
            pieces.append(peers[stage][0].strategy.reduce(bucket, shards, shares))
        recipe = Recipe(spec, StageIndex(stage), CHATS.targets)
        norms = [output.norm_squared for output, _ in pieces]
        found |= recipe.gradient([data for _, data in pieces], norms)
    return found


def _trip(line: list[Peer], item: ItemNumber) -> None:
    *others, last = line
    for peer in others:
        peer.run(item, "forward")
    last.done(item, "whole")
    for peer in reversed(others):
        peer.done(item, "backward")


def plain_gradient(items: list[ItemNumber]) -> dict[str, Tensor]:
    """That of the mean over all targets of these items, fp64."""
    weights = {
        name: weight.double().requires_grad_()
        for name, weight in initial_weights(CONFIG.model, whole()).items()
    }
    batch = tokens_of(rows_of(CONFIG, CHATS.corpus), items).view(-1, LENGTH + 1)
    mean_loss(CONFIG.model, weights, batch, is_marked=True).backward()
    return {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


@pytest.mark.parametrize("layer_ends", [(3,), (1, 2, 3)])
@given(
    dealt=st.dictionaries(
        st.integers(0, 40).map(ItemNumber), st.integers(0, 2), min_size=1, max_size=6
    ),
    lost=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_gradient__items_dealt_at_will_and_some_opened_again__is_that_of_the_plain_loop(
    layer_ends: tuple[int, ...], dealt: dict[ItemNumber, int], lost: int
) -> None:
    torch.set_num_threads(1)
    ours, theirs = gradient_of(spec_of(*layer_ends), dealt, lost), plain_gradient(list(dealt))

    assert ours.keys() == theirs.keys()
    difference = sum(float((ours[name] - each).square().sum()) for name, each in theirs.items())
    length = sum(float(each.square().sum()) for each in theirs.values())
    assert (difference / length) ** 0.5 <= GRADIENT


def test_run__rows_without_the_targets_that_are_counted__are_refused() -> None:
    other = target_counts(CHATS.targets.of_train[::-1], CHATS.targets.of_validation)
    spec = papers_of("p0").spec.message
    data = data_spec(CONFIG, CHATS.corpus.manifest.digest(), other)
    blobs = MemoryBlobs({**CHATS.corpus.blobs, other.digest(): other.encoded()})
    spec = spec.model_copy(update={"data": data})

    with pytest.raises(Malformed, match=r"have not the .* targets"):
        peer_of(spec, 0, source_of(spec, blobs), blobs=blobs).run(ItemNumber(0), "whole")
