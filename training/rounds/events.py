"""What can happen to a job, and what its shell has to do about it. Pure.

Events are facts with their moment inside (the coordinator's receive time); the journal keeps them.
A message that an effect carries is signed and stored with the event. The other effects ask for
work, and are asked for again after a restart. That a seal is due is no effect: its phase says so.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.terms.ids import Address, Digest, PeerId
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from contracts.terms.work import RoundClosed, WorkClaim
from training.rounds.state import RoundState
from training.strategies.port import Group, Item, Result, RoundNumber

# ------------------------------------------------------------------------------------- membership


@dataclass(frozen=True)
class Joined:
    """A peer with a lease came for the first time, or after it had left."""

    peer: PeerId
    group: Group
    owner: Address
    address: str  # where it can be dialled; empty: through the coordinator
    applied: RoundNumber
    lease: Digest  # of its LeaseAccept
    rate: int  # items per 1e6 seconds
    bandwidth: int  # bytes per second
    at: UnixMillis


@dataclass(frozen=True)
class Connected:
    """A member has a session again, perhaps at another address."""

    peer: PeerId
    address: str
    applied: RoundNumber
    at: UnixMillis


@dataclass(frozen=True)
class Disconnected:
    """The session of a member is gone."""

    peer: PeerId
    at: UnixMillis


@dataclass(frozen=True)
class LeaveAsked:
    """A member wants to go, in order."""

    peer: PeerId
    at: UnixMillis


# ------------------------------------------------------------------------------------- the round


@dataclass(frozen=True)
class ItemsDone:
    """Results of a peer; of each item in each group the first one counts."""

    peer: PeerId
    results: tuple[Result, ...]
    at: UnixMillis


@dataclass(frozen=True)
class ItemsLost:
    """Results that count are of no use any more.

    With a peer: it lacks what it made of these items; if `off`, it gets none until the next round,
    and where none are named, as it is silent, all of its are lost. Without one: nobody has the
    tensors from which the rest of these items is to be computed, so they start over.
    """

    peer: PeerId | None
    items: tuple[Item, ...]
    at: UnixMillis
    off: bool = False


@dataclass(frozen=True)
class WorkClaimed:
    """A claim of work, or a report, arrived.

    The shell has checked signature, base and outputs of it, that its leaves are what counts, and
    that reports are wanted.
    """

    claim: WorkClaim
    at: UnixMillis


@dataclass(frozen=True)
class Held:
    """A member, or the coordinator (`COORDINATOR`), has these bytes on disk.

    The shell has checked that stored claims name them.
    """

    holder: PeerId
    digests: frozenset[Digest]
    at: UnixMillis


@dataclass(frozen=True)
class Reduced:
    """A reducer claims what a bucket came to; the shell has checked signature and norm."""

    claim: WorkClaim
    signature: bytes
    at: UnixMillis


@dataclass(frozen=True)
class Sealed:
    """The seal of a round is in the journal."""

    round: RoundNumber
    last: bool
    at: UnixMillis


@dataclass(frozen=True)
class Applied:
    """A member has stored and applied the seal of a round."""

    peer: PeerId
    round: RoundNumber
    at: UnixMillis


# ---------------------------------------------------------------------------------- from outside


@dataclass(frozen=True)
class Controlled:
    """The poster stops, holds or goes on with the job; or the coordinator starts again.

    `stop`: the round in work is the last one with work. `hold`: none begins after it. `resumed`:
    every session is gone, and no timer ran since the last event.
    """

    what: Literal["stop", "hold", "go_on", "resumed"]
    at: UnixMillis


@dataclass(frozen=True)
class NoticeDue:
    """Draws ask for a Notice."""

    what: Literal["missed_report", "missing_data", "suspension"]
    peer: PeerId
    group: Group
    subject: Digest


@dataclass(frozen=True)
class Checked:
    """What draws, limits and bonds allow now; all of it, not what is new."""

    may_work: frozenset[PeerId] | None  # members or not: whose claims are merged; None: everybody
    takes_work: bool  # enough rounds are drawn for one more to be closed
    is_clear: bool  # no draw is open, by the newest seal
    unsealed: frozenset[Digest]  # beacons that only a seal makes count
    seal_wanted: bool  # by a round without work, while none is worked on
    notices: tuple[NoticeDue, ...]
    at: UnixMillis


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    at: UnixMillis


Event: TypeAlias = (
    Joined
    | Connected
    | Disconnected
    | LeaveAsked
    | ItemsDone
    | ItemsLost
    | WorkClaimed
    | Held
    | Reduced
    | Sealed
    | Applied
    | Controlled
    | Checked
    | Ticked
)


# ---------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class SignNotice:
    """Sign, store and publish a change of membership."""

    message: Notice


@dataclass(frozen=True)
class SignRoundClosed:
    """Sign and store; reducers are asked for their buckets."""

    message: RoundClosed


@dataclass(frozen=True)
class KeepBytes:
    """Fetch, check and keep these bytes, then tell `Held`; each with peers that may give them."""

    wanted: tuple[tuple[Digest, tuple[PeerId, ...]], ...]


@dataclass(frozen=True)
class Send:
    """What these members are owed has changed: see `owed`."""

    peers: frozenset[PeerId]


Effect: TypeAlias = SignNotice | SignRoundClosed | KeepBytes | Send

Change: TypeAlias = tuple[RoundState, tuple[Effect, ...]]
"""What an event, or what follows from it, makes of a state."""
