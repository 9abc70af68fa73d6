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
are taken in double precision, in the order of the device. Units: 1e-9. Source: PROTOCOL section 5.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.terms.errors import Refused
from contracts.terms.messages import DISTANCE_SCALE, CodecName
from verification.thresholds import MEASURES, SATURATED, Recipe, distance_name, gradient_kind

FLOOR_SHARE = 0.01
LARGEST_PART, LEAST_LARGEST = 64, 16

_SMALLEST: Mapping[CodecName, float] = {"float16": 2.0**-14}
_TINY = 1e-30  # floor of a tensor that is zero throughout

Distances = tuple[int, int, int, int]
"""In the order of `MEASURES`."""


def tensor_distances(claimed: Tensor, replayed: Tensor, *, floor: float = 0.0) -> Distances:
    """How far `claimed` is from `replayed`.

    Args:
        claimed: What was sent, decoded; any shape and float dtype.
        replayed: The same tensor as the auditor computed it, after the same codec.
        floor: Root mean square below which norms of `replayed` are not believed.

    Raises:
        Refused: the shapes differ.
    """
    if claimed.shape != replayed.shape:
        raise Refused(f"a claim of shape {tuple(claimed.shape)}, not {tuple(replayed.shape)}")
    # Differences of neighbours are exact in fp32; bf16 would hide them.
    replay = replayed.detach().flatten().float()
    claim = claimed.detach().flatten().to(replay.device).float()
    if not bool(torch.isfinite(claim).all() & torch.isfinite(replay).all()):
        return (SATURATED, SATURATED, SATURATED, SATURATED)
    floor = max(floor, _TINY)
    places = replay.abs().topk(_num_largest(len(replay)), sorted=False).indices
    claim_top, replay_top = claim[places], replay[places]
    return (
        _relative(_norm(claim - replay), replay, floor),
        _relative(abs(_norm(claim) - _norm(replay)), replay, floor),
        _flipped(claim_top, replay_top, floor),
        _relative(_norm(claim_top - replay_top), replay_top, floor),
    )


def _num_largest(num_elements: int) -> int:
    return min(num_elements, max(LEAST_LARGEST, -(-num_elements // LARGEST_PART)))


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _relative(far: float, replay: Tensor, floor: float) -> int:
    return _scaled(far / max(_norm(replay), floor * math.sqrt(max(len(replay), 1))))


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
        """Compare a unit's `y`, `dx` or `loss` (in nats, as a tensor of one element).

        Raises:
            Refused: the shapes differ.
        """
        floor = max(FLOOR_SHARE * _root_mean_square([replayed]), self._smallest(kind))
        self._keep(kind, tensor_distances(claimed, replayed, floor=floor))

    def add_gradient(self, claimed: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> None:
        """Compare the gradient that was sent, parameter by parameter, all of the stage at once.

        Raises:
            Refused: the parameters, or their shapes, differ.
        """
        if claimed.keys() != replayed.keys():
            raise Refused("a claim with the gradient of other parameters")
        share = FLOOR_SHARE * _root_mean_square(list(replayed.values()))
        for name, replay in replayed.items():
            kind = gradient_kind(name)
            floor = max(share, self._smallest(kind))
            self._keep(kind, tensor_distances(claimed[name], replay, floor=floor))

    def farthest(self) -> dict[str, Distances]:
        """The largest distances so far, by tensor kind."""
        return dict(self._farthest)

    def distances(self) -> tuple[tuple[str, int], ...]:
        """What an AuditReport states, sorted by name."""
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


def _root_mean_square(tensors: list[Tensor]) -> float:
    """Of all their elements together; 0.0 of what is not finite."""
    num_elements = sum(tensor.numel() for tensor in tensors)
    total = math.hypot(*(_norm(tensor.detach().flatten().float()) for tensor in tensors))
    return total / math.sqrt(max(num_elements, 1)) if math.isfinite(total) else 0.0
