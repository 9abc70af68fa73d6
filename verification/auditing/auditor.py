"""An auditor, whole: work and reports on it by replay, sums and theirs by bytes. Uses torch.

A peer-step is done again whole, in the order of the leaves, from the bytes that its neighbours
really sent; the distances from what was claimed are the report. A claim that cannot be read, or is
not finite, is as far off as can be (docs/protocol.md 5); so is all of a claim that counts a unit
from whose bytes nothing finite comes: no honest peer counts such a one. It is done in the state
that its stage had: who claims another one says what nobody else can repeat. Whoever may be slashed
by what an auditor says can be shown why: see `recording`.

Invariant: only bytes that have the digest which the claim itself names are held against it.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.digest import wire_bytes
from contracts.terms.errors import Malformed, NotFinite, NotFound, Unavailable, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, StageIndex, StepNumber
from contracts.terms.messages import LOSS_SCALE, AuditReport, GradCommit, JobSpec, UnitLeaf
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice
from training.config import slices_of, train_config
from training.data.loading import BlobSource
from training.models.parameters import parameter_shapes
from training.worker.numeric_recipe import NumericRecipe, corpus_rows
from training.worker.ports import Numbers, ReplayedUnit
from training.worker.sealed import SealedCommit
from training.worker.stage_replay import StageReplayer
from verification.auditing.job import AuditedJob
from verification.auditing.loop import (
    compared_with_report,
    make_report,
    report_on_sum,
    seed_for,
    verdict_on,
)
from verification.auditing.recording import Recording, is_evidence, recording
from verification.auditing.replays import RunningReplay, Source
from verification.distances.comparison import Comparison
from verification.distances.thresholds import (
    INPUT_GRADIENT,
    LOSS,
    MEASURES,
    OUTPUT,
    SATURATED,
    Recipe,
    distance_name,
)
from verification.draws.cases import Case
from verification.verdicts import kinds_of

# ----------------------------------------------------------------------------- one peer-step again


@dataclass(frozen=True)
class Found:
    """What a replay showed."""

    distances: tuple[tuple[str, int], ...]
    projections: tuple[int, ...]


async def replay_peer_step(
    source: Source, sealed: SealedCommit, seed: bytes, recorded: Recording | None = None
) -> Found:
    """Do a peer-step again and compare.

    `recorded` also keeps what a replay reads that does not come from `source`: weights and rows.

    Raises:
        NotFound: a tensor, or the weights, cannot be found any more.
        Unavailable: whoever has them is not reached. Misbehaved: nobody has the right ones.
    """
    commit, spec = sealed.commit, source.record.spec
    recipe = Recipe(spec.rules.boundary_codec, spec.rules.gradient_codec)
    comparison, units = Comparison(recipe), list[ReplayedUnit]()
    async with AsyncExitStack() as stack:
        replays = source.replays_in(StageIndex(commit.stage))
        beginning = replays.begin(commit.step, source.state_of(commit), seed)
        try:
            replay = await stack.enter_async_context(beginning)
        except NotFound as error:  # our own weights: nobody else is to blame
            raise Unavailable(error.message) from error
        if recorded is not None:
            await recorded.link(replay.weights)
        for leaf in sealed.leaves:
            done = await _unit(source, sealed, leaf, replay)
            if recorded is not None and done.rows is not None:
                await recorded.put(done.rows.digest, done.rows.data)
            await _compare_unit(source, sealed, leaf, replay, done, comparison)
            units.append(done)
        parts = [await source.part(commit, part.chunk) for part in commit.parts]
        projections = tuple(unit.projection for unit in units)
        if not all(unit.is_finite for unit in units):
            return Found(_farthest(spec, StageIndex(commit.stage)), projections)
        own = [piece.data for piece in await replay.gradient()]
        replayed = await replay.parameters(own)
        claimed = await _claimed_gradient(commit, parts, replay, own, replayed)
        await asyncio.to_thread(  # others are answered meanwhile
            lambda: comparison.add_gradient(_tensors(claimed), _tensors(replayed))
        )
    return Found(comparison.distances(), projections)


async def _unit(
    source: Source, sealed: SealedCommit, leaf: UnitLeaf, replay: RunningReplay
) -> ReplayedUnit:
    step, stage, last = sealed.commit.step, sealed.commit.stage, _last(source.record.spec)
    below, above = (stage - 1, stage), (stage, stage + 1)
    x, dy = None, None
    if stage > 0:
        x = wire_bytes(await source.tensor(step, below, leaf.unit, leaf.x))
    if stage < last:
        dy = wire_bytes(await source.tensor(step, above, leaf.unit, leaf.dy))
    return await replay.unit(leaf.unit, x, dy)


def _farthest(spec: JobSpec, stage: StageIndex) -> tuple[tuple[str, int], ...]:
    """Every distance of a stage, as great as it can be."""
    names = (distance_name(kind, each) for kind in kinds_of(spec, stage) for each in MEASURES)
    return tuple((name, SATURATED) for name in sorted(names))


async def _compare_unit(
    source: Source,
    sealed: SealedCommit,
    leaf: UnitLeaf,
    replay: RunningReplay,
    done: ReplayedUnit,
    comparison: Comparison,
) -> None:
    step, stage = StepNumber(sealed.commit.step), sealed.commit.stage
    for kind, name, mine, stages in (
        (OUTPUT, leaf.y, done.y, (stage, stage + 1)),
        (INPUT_GRADIENT, leaf.dx, done.dx, (stage - 1, stage)),
    ):
        # What was used may be another's, who is gone (docs/protocol.md 3.4).
        is_anothers, data = leaf.unit in sealed.taken_over, None
        if name != ZERO_DIGEST and not is_anothers:  # also where nothing is compared: as evidence
            data = wire_bytes(await source.tensor(step, stages, leaf.unit, name))
        if mine is None:
            continue
        own = await replay.boundary(mine.data)
        claim = own if is_anothers else await _readable(replay, data, own)
        comparison.add(kind, _tensor(claim), _tensor(own))
    if done.loss is not None and leaf.loss is not None:
        comparison.add(LOSS, _nats(leaf.loss), _nats(done.loss))


async def _readable(replay: RunningReplay, data: Buffer | None, own: Numbers) -> Numbers:
    if data is None:
        return _not_finite(own.shape)
    try:
        return await replay.boundary(data)
    except (Malformed, NotFinite):
        return _not_finite(own.shape)


async def _claimed_gradient(
    commit: GradCommit,
    parts: Sequence[bytes],
    replay: RunningReplay,
    own: Sequence[Buffer],
    replayed: Mapping[str, Numbers],
) -> Mapping[str, Numbers]:
    try:
        if [len(part) for part in parts] != [memoryview(part).nbytes for part in own]:
            raise Malformed("parts that nobody can add to those of others")
        return await replay.parameters(parts, [part.norm_squared for part in commit.parts])
    except (Malformed, NotFinite, WrongBytes):
        return {name: _not_finite(each.shape) for name, each in replayed.items()}


def _not_finite(shape: tuple[int, ...]) -> Numbers:
    """What a claim that cannot be read counts as."""
    return Numbers(shape, torch.full(shape, torch.nan).numpy().tobytes())


def _tensors(numbers: Mapping[str, Numbers]) -> dict[str, Tensor]:
    return {name: _tensor(each) for name, each in numbers.items()}


def _tensor(numbers: Numbers) -> Tensor:
    flat = torch.frombuffer(bytearray(numbers.data), dtype=torch.float32)
    return flat.reshape(numbers.shape)


def _nats(loss: int) -> Tensor:
    return torch.tensor([loss / LOSS_SCALE])


def _last(spec: JobSpec) -> int:
    return spec.batch.stages - 1


# ----------------------------------------------------------------------------------------- reports


async def report_on(audited: AuditedJob, case: Case) -> AuditReport:
    """Audit one case that is ours, and say what was found; nothing is sent here.

    Raises:
        NotFound: data are missing. Unavailable: try again. Refused: this kind of device cannot
            judge it.
    """
    if case.is_of_sum:
        report = await report_on_sum(audited, case)
        if is_evidence(case, report):
            async with recording(audited) as recorded:
                await recorded.keep(case, report)
        return report
    async with recording(audited) as recorded:
        report = await _replayed(audited, case, recorded)
        if is_evidence(case, report):
            await recorded.keep(case, report)
    return report


async def _replayed(audited: AuditedJob, case: Case, recorded: Recording) -> AuditReport:
    sealed = audited.commit(case.work)
    found = await replay_peer_step(recorded, sealed, seed_for(case, audited.peer), recorded)
    distances = compared_with_report(recorded, case, found.distances, found.projections)
    verdict = verdict_on(audited, case, distances)
    return make_report(audited, case, verdict, distances, found.projections)


# ----------------------------------------------------------- what an outside auditor computes with

_HEADER_BYTES = 2**20  # of a file of weights, at most: names, shapes and roots
_WEIGHT_BYTES = 4


class StagesArithmetic:
    """Satisfies `outsider.Arithmetic` with the real stages."""

    def __init__(self, spec: JobSpec, blobs: BlobSource, *, device: str = "cpu") -> None:
        self._spec, self._blobs, self._device = spec, blobs, device

    def replayer(self, stage: StageIndex) -> StageReplayer:
        """See `Arithmetic.replayer`; raises as `NumericRecipe` and `corpus_rows`."""
        rows = corpus_rows(self._spec, self._blobs)
        return StageReplayer(NumericRecipe(self._spec, rows, stage), device=self._device)

    def most_bytes(self, stage: StageIndex) -> int:
        """See `Arithmetic.most_bytes`."""
        spec = self._spec
        model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
        shapes = parameter_shapes(model, slices_of(model, spec.batch.layer_ends)[stage])
        return _HEADER_BYTES + _WEIGHT_BYTES * sum(map(math.prod, shapes.values()))

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]) -> Slice:
        """See `Compute.mean`."""
        return mean_slice(parts, weights, self._spec.rules.gradient_codec, totals=totals)
