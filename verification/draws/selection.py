"""Which peer-steps and chunks a coin draws, and who audits them in which order. Pure.

Drawn iff PRF(B_t, subject) < q, with the PRF as a 256-bit fraction and q as a rational, so that
everybody computes the same answer to the last bit. Auditors are ordered by drawing without
replacement, each with a chance in proportion to its weight. With `checking: off` q is zero and
nobody is drawn, but every draw can be derived. Source: docs/protocol.md 4.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex

NOBODY_IS_DRAWN = Fraction(0)
"""q under `checking: off`."""

_SCALE = 2**256


@dataclass(frozen=True)
class PeerStep:
    """The units that one peer computed in one step under one GradCommit."""

    stage: StageIndex
    peer: PeerId
    round: int

    def name(self) -> bytes:
        """What the PRF is taken of."""
        return encode(["peer_step", self.stage, self.peer, self.round])


@dataclass(frozen=True)
class Chunk:
    """An averaged chunk of one stage."""

    stage: StageIndex
    number: ChunkIndex

    def name(self) -> bytes:
        """What the PRF is taken of."""
        return encode(["chunk", self.stage, self.number])


@dataclass(frozen=True)
class Repeat:
    """An AuditReport that an outside auditor may have to repeat."""

    report: Digest

    def name(self) -> bytes:
        """What the PRF is taken of."""
        return encode(["repeat", self.report])


@dataclass(frozen=True)
class Again:
    """A subject whose first audits leave it open: who looks at it in a later round."""

    of: Digest  # the message that is audited
    round: int

    def name(self) -> bytes:
        """What the PRF is taken of."""
        return encode(["again", self.of, self.round])


Subject: TypeAlias = PeerStep | Chunk | Repeat | Again


def prf(step_coin: Digest, name: bytes) -> int:
    """A number below 2**256 that nobody knew before the coin."""
    return int.from_bytes(digest("draw", step_coin + name), "big")


def is_drawn(step_coin: Digest | None, subject: Subject, rate: Fraction) -> bool:
    """Whether `subject` is drawn at probability `rate`; a coin that came too late draws all.

    At rate 0 nothing is drawn whatever the coin, at rate 1 or more everything.
    """
    if rate <= 0:
        return False
    if step_coin is None:
        return True
    return prf(step_coin, subject.name()) * rate.denominator < rate.numerator * _SCALE


def auditor_order(
    step_coin: Digest, subject: Subject, weights: Mapping[PeerId, int]
) -> Iterator[PeerId]:
    """All candidates, the first to audit first; each costs its draw only once it is asked for.

    Args:
        step_coin: B_t of the subject's step; of a later step for a second auditor.
        subject: What is audited.
        weights: Eligible auditors and their positive weights (units in StepClose t, or stake).

    Raises:
        InvariantBroken: a weight is not positive.
    """
    if any(weight <= 0 for weight in weights.values()):
        raise InvariantBroken("an auditor's weight must be positive")
    remaining = dict(sorted(weights.items()))
    for place in range(len(weights)):
        peer = _pick(prf(step_coin, subject.name() + encode(["auditor", place])), remaining)
        del remaining[peer]
        yield peer


def _pick(number: int, weights: Mapping[PeerId, int]) -> PeerId:
    """The candidate whose part of the total weight holds `number` / 2**256."""
    at = number * sum(weights.values()) // _SCALE
    for peer, weight in weights.items():
        if at < weight:
            return peer
        at -= weight
    raise InvariantBroken("a fraction of the total weight lies beyond it")
