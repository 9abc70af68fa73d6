"""What the messages of one step establish: whose units count, and how long the gradient is. Pure.

With an update: the AverageSet's members are GradCommits whose units are, stage by stage, exactly
those that the named StepClose gives their peers; every chunk (`terms/chunks`) was averaged once. An
AverageSet without members ends the step without an update: then the sealed GradCommits that fit
the StepClose count, but for those that a `missing_data` Notice names as its evidence (with older
work as evidence it is about an audit, and takes nothing here). An AverageSet with members lapses if
a chunk was not averaged: there is no update, and its members are paid likewise, as they had
delivered all their parts.
A step without StepClose is empty: it only lets time pass.

The first StepClose of a step holds every unit of the batch; a later one moves units, or strikes
them from all stages. Weights are those of the norm gate, which remembers what was averaged.

Invariants: a unit counts at most once per stage; in an update the unit sets of all stages are
equal; nobody counts for a unit that the StepClose does not give him.
Source: docs/protocol.md 3. Units: norms squared 1e-12, the gradient norm 1e-9.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeVar

from contracts.governance.gates import Gates, PeerStep, gate, peer_step, remember
from contracts.governance.record import JobRecord
from contracts.terms.amounts import Flops
from contracts.terms.errors import Equivocation, InvalidSeal
from contracts.terms.history import unit_leaves_root
from contracts.terms.ids import (
    ZERO_DIGEST,
    ChunkIndex,
    Digest,
    PeerId,
    StageIndex,
    StepNumber,
    UnitId,
)
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    GradientCodecName,
    JobSpec,
    Message,
    Notice,
    StepClose,
    UnitLeaf,
)

M = TypeVar("M", bound=Message)
K = TypeVar("K", int, UnitId, ChunkIndex, Digest)

Work = dict[PeerId, Flops]
Leaves = Mapping[Digest, tuple[UnitLeaf, ...]]

_ROUNDING: Mapping[GradientCodecName, tuple[int, int]] = {
    "none": (10**6, 10**6),
    "float16": (2**10, 4 * 10**8),
    "bfloat16": (2**7, 10**6),
}
"""How far rounding may carry a mean beyond the weighted mean of norms: 1 / this of it, and 1e-12.

fp32 sums: 1e-6. Half a unit in the last place of each element: 2^-11 (fp16) and 2^-8 (bf16) of it,
and of what is too small for fp16 2^-25 each, 4e-4 for the longest chunk there is.
"""


@dataclass(frozen=True)
class StepOutcome:
    """What a step establishes: FLOPs per peer, and the norm that clips the update (1e-9)."""

    gates: Gates  # after the step
    work: Mapping[PeerId, Flops] = field(default_factory=dict)
    gradient_norm: int = 0
    too_long: frozenset[Digest] = frozenset()  # GradCommits above the bound of the norm gate
    counted: frozenset[Digest] = frozenset()  # GradCommits that `work` is made of


@dataclass(frozen=True)
class _Step:
    """The messages of one step by kind."""

    record: JobRecord
    close: StepClose
    average: AverageSet
    commits: Mapping[Digest, GradCommit]
    leaves: Leaves
    chunks: Sequence[AveragedChunk]
    notices: Sequence[Notice]


def require(condition: bool, part: str, message: str) -> None:
    """Refuse a seal because of `part`."""
    if not condition:
        raise InvalidSeal(f"{part}: {message}", part=part)


def read_step(record: JobRecord, messages: Sequence[Message], leaves: Leaves) -> StepOutcome:
    """What `messages` (3 to 8 of the step after `record`) establish.

    Raises:
        Equivocation: two values under one name.
        InvalidSeal: they contradict each other or the record; data: `part`.
    """
    _no_equivocation(messages)
    step = record.step + 1
    fits = all(_step_of(each) == step or _is_older(each, step) for each in messages)
    require(fits, "step", f"not all of step {step}")
    closes = sorted(of_kind(messages, StepClose), key=lambda close: close.revision)
    averages = of_kind(messages, AverageSet)
    commits = {each.digest(): each for each in of_kind(messages, GradCommit)}
    reports = {each.digest() for each in of_kind(messages, AuditReport)}
    named = {name for commit in commits.values() for name in commit.reports}
    require(named <= reports, "reports", "one that a GradCommit names is missing")
    chunks, notices = of_kind(messages, AveragedChunk), of_kind(messages, Notice)
    require(set(leaves) == set(commits), "leaves", "not the leaves of the sealed GradCommits")
    if not closes:
        require(not (commits or averages or chunks), "step_close", "work without a StepClose")
        return StepOutcome(record.gates)
    for close in closes:
        _check_close(record, close)
    _check_revisions(record, closes)
    _check_commits(record, closes, commits, leaves)
    require(len(averages) == 1, "average_set", "a step with a StepClose has one AverageSet")
    close, average = closes[-1], averages[0]
    require(average.step_close == close.digest(), "average_set", "not of the last StepClose")
    return _outcome(_Step(record, close, average, commits, leaves, chunks, notices))


def applied_chunks(spec: JobSpec, messages: Iterable[Message]) -> tuple[AveragedChunk, ...]:
    """The means that members apply under a valid seal over `messages`: all that can be, or none.

    None where the step has no update: its AverageSet is empty, or has lapsed.
    """
    chunks = tuple(each for each in messages if isinstance(each, AveragedChunk))
    return chunks if len(chunks) == len(spec.chunking.all) else ()


def gradient_norm(chunks: Iterable[AveragedChunk]) -> int:
    """Global gradient norm in 1e-9, rounded down, from norms squared in 1e-12."""
    return isqrt(sum(chunk.norm_squared for chunk in chunks) * 10**6)


def _outcome(step: _Step) -> StepOutcome:
    if step.average.members:
        members = _members(step)
        peer_steps = _peer_steps(step.record, members)
        gated = gate(step.record.gates, StepNumber(step.record.step + 1), peer_steps)
        weights = {each.grad_commit: each.weight for each in step.average.members}
        require(weights == gated.weights, "average_set", "weights are not those of the norm gate")
        _check_coverage(step, members)
        _check_links(step, members)
        _check_chunks(step, members)
        if not applied_chunks(step.record.spec, step.chunks):
            return _without_update(step, members)
        gates = remember(step.record.gates, peer_steps)
        norm = gradient_norm(step.chunks)
        return StepOutcome(
            gates, _work(step.record, members), norm, gated.above, frozenset(gated.weights)
        )
    require(not step.chunks, "averaged_chunk", "a step without an update has no averaged chunks")
    sealed = step.commits.items()
    fitting = [commit for name, commit in sealed if _fits(step.close, commit, step.leaves[name])]
    return _without_update(step, fitting)


def _without_update(step: _Step, commits: Iterable[GradCommit]) -> StepOutcome:
    said = (notice for notice in step.notices if notice.what == "missing_data")
    missing = {(notice.peer, notice.evidence) for notice in said}
    counted = [commit for commit in commits if (commit.peer, commit.digest()) not in missing]
    names = frozenset(commit.digest() for commit in counted)
    return StepOutcome(step.record.gates, _work(step.record, counted), counted=names)


def _peer_steps(record: JobRecord, members: Iterable[GradCommit]) -> list[PeerStep]:
    return [peer_step(commit, record.leases[commit.peer].account) for commit in members]


def _work(record: JobRecord, commits: Iterable[GradCommit]) -> Work:
    work: Work = {}
    for commit in commits:
        flops = record.spec.item_flops[commit.stage] * commit.num_units
        work[commit.peer] = Flops(work.get(commit.peer, 0) + flops)
    return work


def of_kind(messages: Sequence[Message], kind: type[M]) -> list[M]:
    """Messages of one kind, in their order."""
    return [message for message in messages if isinstance(message, kind)]


def _step_of(message: Message) -> int:
    return int(getattr(message, "step", 0))


def _is_older(message: Message, step: int) -> bool:
    """A report names the step of the work that it is about."""
    return isinstance(message, AuditReport) and message.step < step


def _no_equivocation(messages: Sequence[Message]) -> None:
    said: dict[tuple[object, ...], Digest] = {}
    for message in messages:
        name, value = message.stated_name(), message.digest()
        require(name is not None, "kind", f"a {message.kind} is not part of a step")
        assert name is not None
        if name in said:
            require(said[name] != value, "messages", f"{message.kind} appears twice")
            raise Equivocation(
                f"two values of one {message.kind}", first=said[name].hex(), second=value.hex()
            )
        said[name] = value


def _check_close(record: JobRecord, close: StepClose) -> None:
    """Every unit has exactly one peer per stage, the same units in all stages."""
    batch = record.spec.batch
    per_stage: dict[StageIndex, set[UnitId]] = {StageIndex(s): set() for s in range(batch.stages)}
    seen: set[tuple[StageIndex, PeerId]] = set()
    for each in close.assignments:
        require(each.stage in per_stage, "step_close", f"stage {each.stage} does not exist")
        require((each.stage, each.peer) not in seen, "step_close", "a peer is assigned twice")
        require(_is_ascending(each.units), "step_close", "units must ascend")
        require(each.units[-1] < batch.units_per_step, "step_close", "a unit beyond the batch")
        require(per_stage[each.stage].isdisjoint(each.units), "step_close", "a unit counts twice")
        seen.add((each.stage, each.peer))
        per_stage[each.stage].update(each.units)
    sets = list(per_stage.values())
    require(all(each == sets[0] for each in sets), "step_close", "stages differ in their units")


def _check_revisions(record: JobRecord, closes: Sequence[StepClose]) -> None:
    """Revisions are numbered from 0, which is full; a later one moves or strikes units."""
    numbers = [close.revision for close in closes]
    require(numbers == list(range(len(closes))), "step_close", f"revisions {numbers}")
    is_full = len(_units(closes[0])) == record.spec.batch.units_per_step
    require(is_full, "step_close", "the first one lacks units of the batch")
    for before, after in itertools.pairwise(_units(close) for close in closes):
        require(after <= before, "step_close", "a revision adds units")


def _units(close: StepClose) -> set[UnitId]:
    return {unit for each in close.assignments for unit in each.units}


def _check_commits(
    record: JobRecord,
    closes: Sequence[StepClose],
    commits: Mapping[Digest, GradCommit],
    leaves: Leaves,
) -> None:
    named = {close.digest(): close for close in closes}
    before: dict[PeerId, set[tuple[StageIndex, UnitId]]] = {}
    for name, commit in sorted(commits.items(), key=lambda item: item[1].round):
        _check_commit(record, commit, leaves[name])
        require(commit.step_close in named, "grad_commit", "names a StepClose that is not sealed")
        units = {(commit.stage, leaf.unit) for leaf in leaves[name]}
        own = before.setdefault(commit.peer, set())
        require(own.isdisjoint(units), "grad_commit", "a peer commits to one unit twice")
        given = _given(named[commit.step_close], commit)
        require(units == given - own, "grad_commit", "units differ from those of the StepClose")
        own |= units


def _check_commit(record: JobRecord, commit: GradCommit, leaves: tuple[UnitLeaf, ...]) -> None:
    stages, chunks = record.spec.batch.stages, record.spec.chunking.of_stage(commit.stage)
    require(record.members.get(commit.peer) == commit.stage, "membership", "not of this stage")
    require(commit.previous_seal == record.previous, "grad_commit", "extends another seal")
    require(commit.units_root == unit_leaves_root(leaves), "units_root", "differs from the leaves")
    require(commit.num_units == len(leaves), "grad_commit", "num_units differs from the leaves")
    require(_is_ascending([leaf.unit for leaf in leaves]), "leaves", "units must ascend")
    rows = record.spec.batch.rows_per_unit * commit.num_units
    require(commit.num_samples == rows, "grad_commit", "num_samples is not the rows of its units")
    parts = [part.chunk for part in commit.parts]
    whole = parts == [number for _, number in chunks]
    require(whole, "grad_commit", "parts are not all chunks in order")
    is_first, is_last = commit.stage == 0, commit.stage == stages - 1
    for leaf in leaves:
        require((leaf.loss is not None) == is_last, "leaves", "a loss belongs to the last stage")
        require(not is_first or leaf.dx == ZERO_DIGEST, "leaves", "the first stage has no dx")
        no_boundary = leaf.y == leaf.dy == ZERO_DIGEST
        require(not is_last or no_boundary, "leaves", "the last stage has no y and dy")


def _given(close: StepClose, commit: GradCommit) -> set[tuple[StageIndex, UnitId]]:
    return {
        (each.stage, unit)
        for each in close.assignments
        if (each.stage, each.peer) == (commit.stage, commit.peer)
        for unit in each.units
    }


def _fits(close: StepClose, commit: GradCommit, leaves: tuple[UnitLeaf, ...]) -> bool:
    return {(commit.stage, leaf.unit) for leaf in leaves} <= _given(close, commit)


def _members(step: _Step) -> list[GradCommit]:
    names = [member.grad_commit for member in step.average.members]
    require(_is_ascending(names), "average_set", "members must ascend by digest, each once")
    members = []
    for member in step.average.members:
        commit = step.commits.get(member.grad_commit)
        require(commit is not None, "average_set", "names a GradCommit that is not sealed")
        assert commit is not None
        members.append(commit)
    return members


def _check_coverage(step: _Step, members: Sequence[GradCommit]) -> None:
    """The members' units are exactly those of the StepClose, peer by peer; one state a stage."""
    covered: dict[tuple[StageIndex, PeerId], list[UnitId]] = {}
    states: dict[StageIndex, set[Digest]] = {}
    for commit in members:
        units = [leaf.unit for leaf in step.leaves[commit.digest()]]
        covered.setdefault((commit.stage, commit.peer), []).extend(units)
        states.setdefault(commit.stage, set()).add(commit.state_root)
    closed = {(each.stage, each.peer): list(each.units) for each in step.close.assignments}
    same = {key: sorted(units) for key, units in covered.items()} == closed
    require(same, "average_set", "its units are not those of the StepClose")
    require(all(len(each) == 1 for each in states.values()), "state_root", "members differ")


def _check_links(step: _Step, members: Sequence[GradCommit]) -> None:
    """What one stage says it sent is what the next says it received."""
    leaf_of = {
        (commit.stage, leaf.unit): leaf
        for commit in members
        for leaf in step.leaves[commit.digest()]
    }
    for (stage, unit), leaf in leaf_of.items():
        after = leaf_of.get((StageIndex(stage + 1), unit))
        if after is not None:
            require(leaf.y == after.x, "links", f"unit {unit}: y of stage {stage} is not x")
            require(leaf.dy == after.dx, "links", f"unit {unit}: dy of stage {stage} is not dx")


def _check_chunks(step: _Step, members: Sequence[GradCommit]) -> None:
    spec, average = step.record.spec, step.average.digest()
    weights = {each.grad_commit: each.weight for each in step.average.members}
    found = [(chunk.stage, chunk.chunk) for chunk in step.chunks]
    once = len(found) == len(set(found)) and set(found) <= set(spec.chunking.all)
    require(once, "averaged_chunk", "one that does not exist, or twice the same")
    for chunk in step.chunks:
        require(chunk.average_set == average, "averaged_chunk", "of another AverageSet")
        is_member = step.record.members.get(chunk.peer) == chunk.stage
        require(is_member, "membership", "a chunk was summed by a peer of another stage")
        fits = is_no_longer(spec, chunk, members, weights)
        require(fits, "norm", "a mean longer than its parts")


def is_no_longer(
    spec: JobSpec,
    chunk: AveragedChunk,
    members: Iterable[GradCommit],
    weights: Mapping[Digest, int],
) -> bool:
    """Whether a chunk can be what its stages' weighted means come to (triangle inequality).

    Args:
        spec: Of the job.
        chunk: What a summing peer says.
        members: GradCommits of the AverageSet.
        weights: Of all of them.
    """
    lengths: dict[StageIndex, list[tuple[int, int]]] = {
        stage: [] for stage in spec.chunking.stages_of((chunk.stage, chunk.chunk))
    }
    for commit in members:
        if commit.stage in lengths:
            length = isqrt(commit.parts[chunk.chunk].norm_squared * 10**12) + 1
            lengths[commit.stage].append((weights[commit.digest()], length))
    if not lengths or not all(lengths.values()):
        return False
    longest = sum(map(_weighted_mean, lengths.values()))
    share, least = _ROUNDING[spec.rules.gradient_codec]
    return isqrt(chunk.norm_squared * 10**12) <= longest + longest // share + least


def _weighted_mean(weighed: Sequence[tuple[int, int]]) -> int:
    total = sum(weight for weight, _ in weighed)
    return sum(weight * value for weight, value in weighed) // total


def _is_ascending(values: Sequence[K]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))
