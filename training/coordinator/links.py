"""Whether what a peer commits to is what passed between the stages. Pure.

A unit's copy names four tensors; those that cross a boundary have a sender and a receiver. Where a
leaf differs from the counted copy, the receiver has to show the sender's signed header
(docs/protocol.md 3.3): with it the sender signed two tensors for one place, without it the
receiver made its own up. A header of another attempt accuses nobody: the peer holds another copy
than the counted one, and says so too late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.messages import GradCommit, TensorHeader, TensorKind, UnitLeaf
from contracts.terms.signatures import decode_signed, expect, verify_session
from training.swarm.state import Copy, Place


@dataclass(frozen=True)
class Difference:
    """A leaf names another tensor than the counted copy; `sender` and `receiver` at this link."""

    place: Place  # of the leaf
    sender: PeerId
    receiver: PeerId
    stage: StageIndex  # the sender's
    tensor: TensorKind
    attempt: int  # of the sender's counted copy
    shown: Digest  # the tensor whose header the receiver has to show


@dataclass(frozen=True)
class OwnFault:
    """A leaf contradicts what its peer had handed in, and no neighbour is part of it."""

    place: Place


class Verdict(Enum):
    """Who is left out, or what is done again."""

    SENDER = auto()
    RECEIVER = auto()
    NOBODY = auto()
    """The unit is computed again."""


def first_difference(
    done: Mapping[Place, Copy], commit: GradCommit, leaves: Sequence[UnitLeaf]
) -> Difference | OwnFault | None:
    """The first link at which a GradCommit leaves the counted copies; inputs come before outputs.

    Leaves of units that do not count as the peer's are the state machine's to refuse.
    """
    for leaf in leaves:
        place = (commit.stage, leaf.unit)
        copy = done.get(place)
        if copy is None or copy.peer != commit.peer:
            continue
        if found := _difference(done, place, copy, leaf):
            return found
    return None


def check_header(data: bytes, sender: SessionKey) -> TensorHeader:
    """The header that `data` spells, signed by `sender`.

    Raises:
        Malformed, BadSignature: it is none, or somebody else's.
    """
    signed = expect(decode_signed(data), TensorHeader)
    verify_session(signed, sender)
    return signed.message


def judge(difference: Difference, step: StepNumber, header: TensorHeader | None) -> Verdict:
    """What a header says that the receiver showed and the sender has signed; None: it has none."""
    if header is None or not _is_of(difference, step, header):
        return Verdict.RECEIVER
    # What a peer made of the counted inputs is its own doing, whichever attempt it was.
    same_copy = _is_output(difference) or header.attempt == difference.attempt
    return Verdict.SENDER if same_copy else Verdict.NOBODY


def _difference(
    done: Mapping[Place, Copy], place: Place, copy: Copy, leaf: UnitLeaf
) -> Difference | OwnFault | None:
    stage, unit = place
    below = done.get((StageIndex(stage - 1), unit))
    above = done.get((StageIndex(stage + 1), unit))
    if leaf.x != copy.x:
        return _received(place, copy, below, "y", leaf.x)
    if leaf.dy != copy.dy:
        return _received(place, copy, above, "dx", leaf.dy)
    if leaf.y != copy.y:
        return _sent(place, copy, above, "y", copy.y)
    if leaf.dx != copy.dx:
        return _sent(place, copy, below, "dx", copy.dx)
    return None


def _received(
    place: Place, own: Copy, sender: Copy | None, tensor: TensorKind, shown: Digest
) -> Difference | OwnFault:
    if sender is None or shown == ZERO_DIGEST:
        return OwnFault(place)
    stage = StageIndex(place[0] - 1 if tensor == "y" else place[0] + 1)
    return Difference(place, sender.peer, own.peer, stage, tensor, sender.attempt, shown)


def _sent(
    place: Place, own: Copy, receiver: Copy | None, tensor: TensorKind, shown: Digest
) -> Difference | OwnFault:
    if receiver is None or shown == ZERO_DIGEST:
        return OwnFault(place)
    return Difference(place, own.peer, receiver.peer, place[0], tensor, own.attempt, shown)


def _is_output(difference: Difference) -> bool:
    return difference.stage == difference.place[0]


def _is_of(difference: Difference, step: StepNumber, header: TensorHeader) -> bool:
    named = (header.step, header.stage, header.unit, header.tensor, header.tensor_digest)
    wanted = (step, difference.stage, difference.place[1], difference.tensor, difference.shown)
    return named == wanted
