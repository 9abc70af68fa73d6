"""What can happen to a job, and what its shell has to do about it. Pure.

Events are facts with their moment inside (the coordinator's receive time); the journal keeps them.
Effects that carry a message want it signed, stored and sent; the others ask for work or tell.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.terms.chunks import Chunk
from contracts.terms.ids import Address, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, Notice, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.state import Copy, Part, Place, SwarmState


@dataclass(frozen=True)
class PeerJoined:
    """A peer with a lease came for the first time, or after it had left."""

    peer: PeerId
    stage: StageIndex
    address: str
    applied: StepNumber
    lease: Digest  # of its LeaseAccept
    owner: Address
    rate: int  # units per 1e6 seconds
    bandwidth: int  # bytes per second
    at: UnixMillis


@dataclass(frozen=True)
class PeerReturned:
    """A member has a session again, perhaps at another address."""

    peer: PeerId
    address: str
    applied: StepNumber
    at: UnixMillis


@dataclass(frozen=True)
class PeerLost:
    """The session of a member is gone."""

    peer: PeerId
    at: UnixMillis


@dataclass(frozen=True)
class PeerLeaving:
    """A member wants to go, in order."""

    peer: PeerId
    at: UnixMillis


@dataclass(frozen=True)
class UnitsDone:
    """These copies are in the gradients of their peers."""

    step: StepNumber
    copies: tuple[tuple[Place, Copy], ...]
    at: UnixMillis


@dataclass(frozen=True)
class UnitsLost:
    """Nobody who is reached has the tensors that the rest of these units is to be computed from."""

    step: StepNumber
    units: tuple[ItemNumber, ...]
    at: UnixMillis


@dataclass(frozen=True)
class UnitsLacked:
    """A peer does not hold units that count as its work."""

    step: StepNumber
    peer: PeerId
    places: tuple[Place, ...]
    at: UnixMillis


@dataclass(frozen=True)
class GradCommitted:
    """A GradCommit with its leaves arrived; shell has checked signature and leaves."""

    commit: GradCommit
    units: tuple[ItemNumber, ...]
    at: UnixMillis


@dataclass(frozen=True)
class LinkBroken:
    """What this member committed to cannot be: it is left out of the step.

    It is not what its neighbours hold, or a part is not as long as it bound.
    """

    step: StepNumber
    peer: PeerId
    at: UnixMillis


@dataclass(frozen=True)
class PartsDenied:
    """A summing peer lacks parts that the coordinator relayed to it, or cannot sum, or is silent.

    After the AverageSet also one that cannot come to what another has summed.
    """

    step: StepNumber
    peer: PeerId
    at: UnixMillis


@dataclass(frozen=True)
class PartsHeld:
    """A summing peer, or a deputy, holds these parts and has checked their digests."""

    step: StepNumber
    peer: PeerId
    parts: tuple[Part, ...]
    at: UnixMillis


@dataclass(frozen=True)
class ChunkAveraged:
    """A summing peer bound itself to the mean of a chunk; shell has checked the signature.

    It enters the history when enough members hold the mean: what is there cannot be taken back.
    """

    chunk: AveragedChunk
    at: UnixMillis
    signature: bytes = b""


@dataclass(frozen=True)
class ChunksHeld:
    """A member holds averaged chunks, with the digests that will be sealed."""

    step: StepNumber
    peer: PeerId
    chunks: tuple[Chunk, ...]
    at: UnixMillis


@dataclass(frozen=True)
class MeansKept:
    """The coordinator has these averaged chunks, with the digests that will be sealed."""

    step: StepNumber
    chunks: tuple[Chunk, ...]
    at: UnixMillis


@dataclass(frozen=True)
class MeansWithheld:
    """What `peer` signed as the means of these chunks is nowhere: nobody gives or sums it."""

    step: StepNumber
    peer: PeerId
    chunks: tuple[Chunk, ...]
    at: UnixMillis


@dataclass(frozen=True)
class SealStored:
    """The seal of a step is in the journal."""

    step: StepNumber
    last: bool
    at: UnixMillis


@dataclass(frozen=True)
class SealApplied:
    """A member has stored and applied the seal of a step."""

    peer: PeerId
    step: StepNumber
    at: UnixMillis


@dataclass(frozen=True)
class Resumed:
    """The coordinator starts again from its journal: every session is gone."""

    at: UnixMillis


@dataclass(frozen=True)
class StopAsked:
    """The deadline has come, or the poster cancels: the step in work is the last one with work."""

    at: UnixMillis


@dataclass(frozen=True)
class HoldAsked:
    """The poster pauses the job: no step is begun after the one in work."""

    at: UnixMillis


@dataclass(frozen=True)
class GoOnAsked:
    """The poster's pause is over."""

    at: UnixMillis


@dataclass(frozen=True)
class Checked:
    """What the draws allow now: see `SwarmState`."""

    takes_work: bool
    is_clear: bool
    at: UnixMillis


@dataclass(frozen=True)
class SealWanted:
    """A beacon or a report came that a seal has to hold."""

    at: UnixMillis


@dataclass(frozen=True)
class SealDue:
    """No work goes out: what came is enough for a seal, or a deadline counted in seals goes on."""

    at: UnixMillis


@dataclass(frozen=True)
class NoticeDue:
    """Draws ask for a Notice: of a missed report, of missing data, or of a suspension."""

    what: Literal["missed_report", "missing_data", "suspension"]
    peer: PeerId
    stage: StageIndex
    subject: Digest
    at: UnixMillis


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    at: UnixMillis


Event: TypeAlias = (
    PeerJoined
    | PeerReturned
    | PeerLost
    | PeerLeaving
    | UnitsDone
    | UnitsLost
    | UnitsLacked
    | GradCommitted
    | LinkBroken
    | PartsHeld
    | PartsDenied
    | ChunkAveraged
    | ChunksHeld
    | MeansKept
    | MeansWithheld
    | SealStored
    | SealApplied
    | Resumed
    | StopAsked
    | HoldAsked
    | GoOnAsked
    | Checked
    | SealWanted
    | SealDue
    | NoticeDue
    | Ticked
)


@dataclass(frozen=True)
class SendNotice:
    """Sign, store and publish a change of membership."""

    message: Notice


@dataclass(frozen=True)
class SendStepClose:
    """Sign and store; its peers are asked for their GradCommits."""

    message: StepClose


@dataclass(frozen=True)
class SendAverageSet:
    """Sign and store; summing peers are asked for their chunks."""

    message: AverageSet


@dataclass(frozen=True)
class KeepChunks:
    """Store these means and their signatures, which the seal is about to name."""

    chunks: tuple[tuple[AveragedChunk, bytes], ...]


@dataclass(frozen=True)
class BuildSeal:
    """Derive, sign and store the seal of this step, then tell `SealStored`."""

    step: StepNumber
    last: bool


@dataclass(frozen=True)
class Redo:
    """These units are not done any more: they go out again."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class EndedWithoutUpdate:
    """Work that was lost could not be done again in time; the optimiser's counter stays."""

    step: StepNumber


@dataclass(frozen=True)
class PauseJob:
    """Three such steps in a row: no units go out until a peer joins, returns or goes."""


Effect: TypeAlias = (
    SendNotice
    | SendStepClose
    | SendAverageSet
    | KeepChunks
    | BuildSeal
    | Redo
    | EndedWithoutUpdate
    | PauseJob
)

Change: TypeAlias = tuple[SwarmState, tuple[Effect, ...]]
"""What an event, or what follows from it, makes of a state."""
