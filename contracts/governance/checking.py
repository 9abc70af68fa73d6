"""What pay needs to know of draws and verdicts: the port, and its twin for unchecked jobs. Pure.

Checking is a fold beside that of pay. After each seal it says how far draws are settled, whose pay
waits, whose is frozen and whose is lost; `vesting` turns that into amounts. Who is drawn and what a
verdict means is decided above (`verification.docket`); here is only what every reader of a history
has to agree on. Source: docs/protocol.md 4 to 6.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from contracts.governance.pay import Lease
from contracts.terms.amounts import Flops
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import InvalidSeal, UnknownVersion
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import JobSpec, Notice, StepBeacon
from contracts.terms.work import Findings, WorkClaim


@dataclass(frozen=True)
class Terms:
    """What checking depends on beside messages: the signed job and who may work at what price."""

    spec: JobSpec
    leases: Mapping[PeerId, Lease]
    members: Mapping[PeerId, StageIndex]  # before the step


@dataclass(frozen=True)
class Reported:
    """The claim of a report, and what its leaf says."""

    claim: WorkClaim
    findings: Findings


@dataclass(frozen=True)
class RoundFacts:
    """What one seal covers that checking looks at."""

    step: StepNumber
    claims: Sequence[WorkClaim]  # of work, paid or not
    buckets: Sequence[WorkClaim]
    work: Mapping[PeerId, Flops]  # that counts as done
    above: frozenset[Digest]  # claims that the norm gate names
    beacons: Sequence[StepBeacon]
    reports: Sequence[Reported]
    notices: Sequence[Notice]
    last: bool


Cause: TypeAlias = Literal["convicted", "missing_data", "missed_report"]
"""Why pay is lost: its work was found false, could not be shown, or a report never came."""


@dataclass(frozen=True)
class Forfeit:
    """Pay that is lost: all of a peer's that has not vested, or that of one step."""

    peer: PeerId
    step: StepNumber | None = None  # None: all
    cause: Cause = "convicted"


@dataclass(frozen=True)
class Standing:
    """What draws and verdicts say about pay after a seal."""

    settled_to: StepNumber  # of this step and all before it everybody's draws are known
    open_since: Mapping[PeerId, StepNumber] = field(default_factory=dict)
    """The first step of which a draw of the peer's is not settled."""
    owing: frozenset[PeerId] = frozenset()  # a report
    frozen: frozenset[PeerId] = frozenset()
    forfeits: tuple[Forfeit, ...] = ()  # in this seal
    audits: Mapping[PeerId, Flops] = field(default_factory=dict)  # replayed and reported in it

    def settled_for(self, peer: PeerId, step: StepNumber) -> StepNumber:
        """Up to which step no draw of `peer` is open, after the seal of `step`."""
        first_open = self.open_since.get(peer, StepNumber(step + 1))
        return StepNumber(min(self.settled_to, first_open - 1))


NOTHING_SAID = Standing(StepNumber(0))
"""Before the first seal."""


@dataclass(frozen=True)
class Late:
    """A report that is due: a Notice may say so in the next seal."""

    auditor: PeerId
    stage: StageIndex
    subject: Digest
    attempt: int
    opened: StepNumber  # the seal by which the attempt began
    heard: tuple[PeerId, ...] = ()  # who has reported on it, so had its data


class Checking(Protocol):
    """The fold of a job's draws and verdicts. Immutable."""

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits for a beacon, an auditor or a verdict: the job may end."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget for audits covers no further step: work ends here."""

    @property
    def undrawn(self) -> Collection[StepNumber]:
        """The steps whose beacons have to come, the oldest first."""

    @property
    def convicts(self) -> frozenset[PeerId]:
        """Who may not be a member any more."""

    @property
    def oldest_needed(self) -> StepNumber | None:
        """The oldest step whose states, tensors and parts may still be asked for; None: none."""

    def needed_of(self, step: StepNumber) -> frozenset[Digest] | None:
        """Claims of work and buckets of a sealed step whose audits need its tensors and parts.

        Only ever fewer with the seals that follow. None: all, as its beacon is not known.
        """

    def takes_work(self, beacons: int) -> bool:
        """Whether a step with work may be closed whose seal holds so many of the next beacons."""

    def awaited(self) -> tuple[Late, ...]:
        """Every report that somebody owes, and since when."""

    def wants(self, report: Reported) -> bool:
        """Whether a report counts, if the next seal holds it."""

    def most_units(
        self, step: StepNumber, stage: StageIndex, expected: Mapping[PeerId, int], terms: Terms
    ) -> Mapping[PeerId, int]:
        """Units that q <= 1 covers, rounded down; who is not named may be given any number.

        Args:
            step: The one after the newest seal.
            stage: Whose units.
            expected: Who may be given some, and how many it would be given otherwise: by these
                weights they audit each other.
            terms: As of `after`.
        """

    def after(self, facts: RoundFacts, terms: Terms) -> "tuple[Checking, Standing]":
        """The state after one more seal, and what it says about pay.

        Raises:
            InvalidSeal: a beacon, report or Notice that may not stand there, or one that lacks.
        """


Begin: TypeAlias = Callable[[JobSpec, AuditorList], Checking]
"""Makes the fold of a checked job from what its poster and its opening have fixed."""


@dataclass(frozen=True)
class _NobodyDrawn:
    """What a fold without draws answers."""

    is_clear = True
    is_spent = False
    undrawn: Collection[StepNumber] = ()
    convicts: frozenset[PeerId] = frozenset()
    oldest_needed = None

    def needed_of(self, step: StepNumber) -> frozenset[Digest] | None:
        """See `Checking.needed_of`."""
        return None

    def takes_work(self, beacons: int) -> bool:
        """See `Checking.takes_work`."""
        return True

    def awaited(self) -> tuple[Late, ...]:
        """See `Checking.awaited`."""
        return ()

    def wants(self, report: Reported) -> bool:
        """See `Checking.wants`."""
        return False

    def most_units(
        self, step: StepNumber, stage: StageIndex, expected: Mapping[PeerId, int], terms: Terms
    ) -> Mapping[PeerId, int]:
        """See `Checking.most_units`."""
        return {}


@dataclass(frozen=True)
class Unlisted(_NobodyDrawn):
    """A checked job before the list of outside auditors, without which nothing can be sealed."""

    is_clear = False

    def takes_work(self, beacons: int) -> bool:
        """See `Checking.takes_work`."""
        return False

    def after(self, facts: RoundFacts, terms: Terms) -> "tuple[Checking, Standing]":
        """See `Checking.after`."""
        raise InvalidSeal("auditors: the list that the opening names is missing", part="auditors")


@dataclass(frozen=True)
class Unchecked(_NobodyDrawn):
    """The twin for a job whose spec has no audit: nobody is drawn."""

    def after(self, facts: RoundFacts, terms: Terms) -> "tuple[Checking, Standing]":
        """See `Checking.after`."""
        if facts.beacons or facts.reports or any(claim.reports for claim in facts.claims):
            raise InvalidSeal("reports: nobody is drawn, checking is off", part="reports")
        return self, Standing(settled_to=facts.step)


def unread(spec: JobSpec, outside: AuditorList) -> Checking:
    """For a reader that cannot follow draws, and therefore reads no checked job."""
    raise UnknownVersion("this program reads no jobs that are checked", kind=spec.kind)
