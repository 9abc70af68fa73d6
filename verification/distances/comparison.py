"""How far is a replay from the claim? Four measures for each kind of tensor. Uses torch.

| measure | is | sees what the others miss |
|---|---|---|
| relative_l2 | norm of claim - replay, in parts of the replay's | anything but small changes |
| norm_ratio | difference of the norms, in parts of the replay's | scaling, below rounding noise |
| signs | part of the largest entries whose sign differs, by magnitude | who compares magnitudes |
| largest | relative_l2 over the largest entries alone | changes of the few that matter |

"Largest entries": the 1/64 of the replay, at least 16, with the greatest magnitudes. Cosine
similarity is none of these: it does not see a scaling. An audit states, for each kind, the largest
distance of any unit and of any parameter tensor of that role.

Norms are floored, because a tensor that is zero in exact arithmetic is nothing but noise: below
`FLOOR_SHARE` of the root mean square of the whole gradient (of the tensor itself, for what is
no gradient) a lie is measured against the floor. Under float16 also below its smallest normal
number, where it has no relative precision. What is not finite is farther than anything.

Callers decode: both tensors passed the job's codec, the claim on its way here, the replay by the
auditor. Distances are rounded up, and two auditors may differ in their last digits: sums of squares
are taken in double precision, in the order of the device. Units: 1e-9. Source: docs/protocol.md 5.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.terms.errors import Refused
from contracts.terms.messages import DISTANCE_SCALE, CodecName
from verification.distances.thresholds import (
    MEASURES,
    SATURATED,
    Recipe,
    distance_name,
)

FLOOR_SHARE = 0.01
LARGEST_PART, LEAST_LARGEST = 64, 16
SAMPLED = 64

_SMALLEST: Mapping[CodecName, float] = {"float16": 2.0**-14}
_TINY = 1e-30  # floor of a tensor that is zero throughout

Distances = tuple[int, int, int, int]
"""In the order of `MEASURES`."""


@dataclass(frozen=True)
class Measured:
    """A tensor as one vector of fp32, and its norm: not finite if any element is not."""

    shape: torch.Size
    vector: Tensor
    norm: float

    @classmethod
    def of(cls, tensor: Tensor) -> "Measured":
        """What is measured of any tensor."""
        # Differences of neighbours are exact in fp32; bf16 would hide them.
        vector = tensor.detach().flatten().float()
        return cls(tensor.shape, vector, _norm(vector))


def distances_between(claimed: Tensor, replayed: Measured, floor: float) -> Distances:
    """How far `claimed` is from `replayed`.

    Args:
        claimed: What was sent, decoded; any float dtype.
        replayed: The same tensor as the auditor computed it, after the same codec.
        floor: Root mean square below which norms of `replayed` are not believed.

    Raises:
        Refused: the shapes differ.
    """
    if claimed.shape != replayed.shape:
        raise Refused(f"a claim of shape {tuple(claimed.shape)}, not {tuple(replayed.shape)}")
    replay, norm = replayed.vector, replayed.norm
    claim = claimed.detach().flatten().to(replay.device).float()
    norm_claimed = _norm(claim)
    if not (math.isfinite(norm) and math.isfinite(norm_claimed)):
        return (SATURATED, SATURATED, SATURATED, SATURATED)
    floor = max(floor, _TINY)
    places = _places_of_largest(replay.abs())
    claim_top, replay_top = claim[places], replay[places]
    least = max(norm, floor * math.sqrt(max(len(replay), 1)))
    least_top = max(_norm(replay_top), floor * math.sqrt(max(len(replay_top), 1)))
    return (
        _scaled(_norm(claim - replay) / least),
        _scaled(abs(norm_claimed - norm) / least),
        _flipped(claim_top, replay_top, floor),
        _scaled(_norm(claim_top - replay_top) / least_top),
    )


def _places_of_largest(magnitudes: Tensor) -> Tensor:
    """Where the largest entries are, in no order.

    Selecting among all of millions costs more than everything else here. So it is done among those
    above a bound: in a sample of every 64th, twice as many are above it as we want of all.
    """
    num_largest = _num_largest(len(magnitudes))
    sample = magnitudes[::SAMPLED]
    num_above = 2 * -(-num_largest // SAMPLED)
    if num_above < len(sample):
        bound = sample.topk(num_above, sorted=True).values[-1]
        above = (magnitudes >= bound).nonzero().flatten()
        if len(above) >= num_largest:  # else the sample was none of the whole
            return above[magnitudes[above].topk(num_largest, sorted=False).indices]
    return magnitudes.topk(num_largest, sorted=False).indices


def _num_largest(num_elements: int) -> int:
    return min(num_elements, max(LEAST_LARGEST, -(-num_elements // LARGEST_PART)))


def _norm(vector: Tensor) -> float:
    """In double precision no square of an fp32 number overflows: it is finite iff all are."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _flipped(claim_top: Tensor, replay_top: Tensor, floor: float) -> int:
    # By magnitude: an entry that rounding may turn has none.
    weights = replay_top.abs().double()
    turned = float(weights[claim_top.sign() != replay_top.sign()].sum())
    return _scaled(turned / max(float(weights.sum()), floor * max(len(weights), 1)))


def _scaled(value: float) -> int:
    if not math.isfinite(value):
        return SATURATED
    return min(math.ceil(value * DISTANCE_SCALE), SATURATED)


class Comparison:
    """The distances of one audit: the largest of each kind and measure."""

    def __init__(self, recipe: Recipe) -> None:
        """Nothing was compared yet; `recipe` says which codecs the tensors passed."""
        self._recipe = recipe
        self._farthest: dict[str, Distances] = {}
        self.num_tensors = 0

    def add(self, kind: str, claimed: Tensor, replayed: Tensor) -> None:
        """Compare a unit's `y`, `dx` or `loss` (in nats, as a tensor of one element), or a trace.

        Raises:
            Refused: the shapes differ.
        """
        measured = Measured.of(replayed)
        floor = max(FLOOR_SHARE * _root_mean_square([measured]), self._smallest(kind))
        self._keep(kind, distances_between(claimed, measured, floor))

    def add_gradient(self, claimed: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> None:
        """Compare what was sent to others, parameter by parameter, all of the stage at once.

        Raises:
            Refused: the parameters, or their shapes, differ.
        """
        if claimed.keys() != replayed.keys():
            raise Refused("a claim with other parameters")
        measured = {name: Measured.of(replay) for name, replay in replayed.items()}
        share = FLOOR_SHARE * _root_mean_square(list(measured.values()))
        for name, replay in measured.items():
            kind = self._recipe.kind_of(name)
            floor = max(share, self._smallest(kind))
            self._keep(kind, distances_between(claimed[name], replay, floor))

    def farthest(self) -> dict[str, Distances]:
        """The largest distances so far, by tensor kind."""
        return dict(self._farthest)

    def distances(self) -> tuple[tuple[str, int], ...]:
        """What a report states, sorted by name."""
        named = (
            (distance_name(kind, measure), distance)
            for kind, farthest in self._farthest.items()
            for measure, distance in zip(MEASURES, farthest, strict=True)
        )
        return tuple(sorted(named))

    def _smallest(self, kind: str) -> float:
        return _SMALLEST.get(self._recipe.codec_of(kind), 0.0)

    def _keep(self, kind: str, distances: Distances) -> None:
        self.num_tensors += 1
        before = self._farthest.get(kind, (0, 0, 0, 0))
        a, b, c, d = (max(pair) for pair in zip(before, distances, strict=True))
        self._farthest[kind] = (a, b, c, d)


def _root_mean_square(tensors: list[Measured]) -> float:
    """Of all their elements together; 0.0 of what is not finite."""
    num_elements = sum(len(each.vector) for each in tensors)
    total = math.hypot(*(each.norm for each in tensors))
    return total / math.sqrt(max(num_elements, 1)) if math.isfinite(total) else 0.0
