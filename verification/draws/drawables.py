"""What the coin of a seal may draw: peer-steps, sums, and reports to be repeated. Pure.

Each message as the case that it would begin, with the rate of its draw. All that a seal holds is of
its own step, but for reports, which are of an older one. Source: docs/protocol.md 4.
"""

from dataclasses import dataclass
from fractions import Fraction

from contracts.terms.amounts import Flops
from contracts.terms.ids import StepNumber
from contracts.terms.messages import AveragedChunk, GradCommit
from verification.draws.auditors import Weights
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import Chunk, PeerStep, Repeat, Subject


@dataclass(frozen=True)
class Drawable:
    """A message that the coin of its seal may draw."""

    subject: Subject
    rate: Fraction
    case: Case  # as it begins
    inside: Weights  # who of the stage may audit it


def peer_step(commit: GradCommit, flops: Flops, rate: Fraction, inside: Weights) -> Drawable:
    """Work of so many FLOPs, as its GradCommit binds it."""
    name, peer, step = commit.digest(), commit.peer, commit.step
    case = Case(name, "work", peer, commit.stage, step, step, flops, name, peer)
    return Drawable(PeerStep(commit.stage, peer, commit.round), rate, case, inside)


def average(chunk: AveragedChunk, rate: Fraction, inside: Weights) -> Drawable:
    """A sum, which costs no model FLOPs to do again."""
    name, peer, step = chunk.digest(), chunk.peer, chunk.step
    case = Case(name, "sum", peer, chunk.stage, step, step, Flops(0), name, peer)
    return Drawable(Chunk(chunk.stage, chunk.chunk), rate, case, inside)


def repeat(said: Heard, case: Case, rate: Fraction, inside: Weights, seal: StepNumber) -> Drawable:
    """The report on `case` that `seal` holds, as something that may be repeated outside."""
    return Drawable(Repeat(said.report), rate, repeat_of(case, said, seal), inside)
