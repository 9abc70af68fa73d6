"""The norm gate: how much a gradient that is far longer than the others' may weigh. Pure.

A claim of work is compared with the others of its group (docs/protocol.md 3.5). Its bound is

    3 x max(median over owners of their medians of 25 steps, median of the others in this step)
      x max(1, sqrt(median samples / its samples))

(of what grows with its samples the last factor is max(1, its samples / median samples)), and above
it the weight becomes samples x bound / norm, so that a mean is moved by no more than one bound. In
a job's first 25 steps, where norms do not grow, and with fewer than 3 owners in a stage, nobody is
scaled down, but who is above is named: such peers are drawn for certain once somebody is drawn.

Exact integers, the same for coordinator, members and audits:

- norm = isqrt(10^6 x sum of the norms squared of all outputs), in 1e-9, rounded down; where several
  vectors are exchanged each has one, and the smallest share bound / norm counts;
- a median of an even number is the mean of the two in the middle, rounded down;
- an owner's norm in a step is the median of its peer-steps' norms;
- bound = isqrt(9 x reference^2 x max(median samples, samples) / samples), rounded down twice; of
  what grows 3 x reference x max(median samples, samples) / median samples, rounded down;
- weight = samples; in a stage where somebody is scaled down 2^20 times that for all, so that few
  samples can weigh less than one, and there samples x 2^20 x bound / norm, rounded down.

What is remembered is what was committed, not what was averaged: an owner that is too long too often
moves its own median only. Steps without an update leave no trace.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import TypeAlias

from contracts.terms.ids import Address, Digest, StageIndex, StepNumber
from contracts.terms.work import WorkClaim

WINDOW = 25  # steps: of the medians, and before the gate closes for the first time
FACTOR = 3
MIN_OWNERS = 3
FINE = 2**20

Norms: TypeAlias = tuple[int, ...]
"""In 1e-9, one for each vector that a claim exchanges."""
OwnerNorms: TypeAlias = Mapping[StageIndex, Mapping[Address, tuple[Norms, ...]]]
"""Of one step's peer-steps by stage and owner, ascending."""


@dataclass(frozen=True)
class Gates:
    """Norms of the last `WINDOW` steps with an update, oldest first. Begin with `Gates()`."""

    steps: tuple[OwnerNorms, ...] = ()


@dataclass(frozen=True)
class Gated:
    """Weights of the claims that a round merges, and which of them are above their bound."""

    weights: Mapping[Digest, int] = field(default_factory=dict)
    above: frozenset[Digest] = frozenset()


@dataclass(frozen=True)
class PeerStep:
    """What the gate looks at of one claim of work."""

    name: Digest
    stage: StageIndex
    owner: Address
    samples: int
    norms: Norms


def peer_step(claim: WorkClaim, owner: Address, samples: int, num_vectors: int) -> PeerStep:
    """A claim of work as the gate sees it, of so many vectors that are cut alike."""
    squares = [output.norm_squared for output in claim.outputs]
    size = len(squares) // num_vectors
    starts = range(0, size * num_vectors, size)
    norms = tuple(isqrt(sum(squares[at : at + size]) * 10**6) for at in starts)
    return PeerStep(claim.digest(), claim.group, owner, samples, norms)


def gate(
    gates: Gates, step: StepNumber, peer_steps: Iterable[PeerStep], *, norms_grow: bool = False
) -> Gated:
    """The weight of each peer-step that is averaged in `step`.

    Norms grow with samples where these are steps one after another: a mean of more rows is shorter,
    the way of more steps is longer, and the first ones of a job are no longer than later ones.
    """
    by_stage: defaultdict[StageIndex, list[PeerStep]] = defaultdict(list)
    for each in peer_steps:
        by_stage[each.stage].append(each)
    weights: dict[Digest, int] = {}
    above: set[Digest] = set()
    for stage, own in by_stage.items():
        is_early = step <= WINDOW and not norms_grow
        is_open = is_early or len({each.owner for each in own}) < MIN_OWNERS
        shares = _shares(gates, stage, own, norms_grow)
        above |= shares.keys()
        if is_open or not shares:
            weights |= {each.name: each.samples for each in own}
            continue
        for each in own:
            weights[each.name] = int(each.samples * FINE * shares.get(each.name, Fraction(1)))
    return Gated(weights, frozenset(above))


def _shares(
    gates: Gates, stage: StageIndex, peer_steps: Sequence[PeerStep], norms_grow: bool
) -> Mapping[Digest, Fraction]:
    """Of the weight of each that is above its bound: the least bound / norm of its vectors."""
    shares: dict[Digest, Fraction] = {}
    for vector in range(len(peer_steps[0].norms)):
        usual = _usual_norm(gates, stage, vector)
        bounds = _bounds(usual, peer_steps, vector, norms_grow)
        for each in peer_steps:
            norm = each.norms[vector]
            if norm > bounds.get(each.name, norm):
                share = Fraction(bounds[each.name], norm)
                shares[each.name] = min(share, shares.get(each.name, share))
    return shares


def remember(gates: Gates, peer_steps: Iterable[PeerStep]) -> Gates:
    """With the peer-steps of one more update."""
    norms: defaultdict[StageIndex, defaultdict[Address, list[Norms]]]
    norms = defaultdict(lambda: defaultdict(list))
    for each in peer_steps:
        norms[each.stage][each.owner].append(each.norms)
    step: OwnerNorms = {
        stage: {owner: tuple(sorted(own)) for owner, own in owners.items()}
        for stage, owners in norms.items()
    }
    return Gates((*gates.steps, step)[-WINDOW:])


def _usual_norm(gates: Gates, stage: StageIndex, vector: int) -> int | None:
    """Median over owners of their medians of the remembered steps; None before there is any."""
    norms: defaultdict[Address, list[int]] = defaultdict(list)
    for step in gates.steps:
        for owner, own in step.get(stage, {}).items():
            norms[owner].extend(each[vector] for each in own)
    return _median([_median(own) for own in norms.values()]) if norms else None


def _bounds(
    usual: int | None, peer_steps: Sequence[PeerStep], vector: int, norms_grow: bool
) -> Mapping[Digest, int]:
    """The bound of each; none where there is nobody to compare with."""
    norms: defaultdict[Address, list[int]] = defaultdict(list)
    for each in peer_steps:
        norms[each.owner].append(each.norms[vector])
    medians = {owner: _median(own) for owner, own in norms.items()}
    samples = _median([each.samples for each in peer_steps])
    bounds: dict[Digest, int] = {}
    for each in peer_steps:
        others = [norm for owner, norm in medians.items() if owner != each.owner]
        found = [*([] if usual is None else [usual]), *([_median(others)] if others else [])]
        if found:
            bounds[each.name] = _bound(max(found), samples, each.samples, norms_grow)
    return bounds


def _bound(reference: int, median_samples: int, samples: int, norms_grow: bool) -> int:
    larger = max(median_samples, samples)
    if norms_grow:
        return FACTOR * reference * larger // median_samples
    return isqrt((FACTOR * reference) ** 2 * larger // samples)


def _median(values: Sequence[int]) -> int:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2
