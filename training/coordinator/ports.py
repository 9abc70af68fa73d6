"""What the coordinator needs of the world: where to post, and who may come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from contracts.governance.escrow import Budget, Channel
from contracts.governance.limits import Accrual
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address, StepNumber
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed

Clock = Callable[[], UnixMillis]


@dataclass(frozen=True)
class StepReport:
    """What people like to see of a step: neither paid nor audited."""

    step: StepNumber
    loss_millionths: int  # 1e-6 nats per token, mean over the step's units
    tokens_per_second: int
    at: UnixMillis
    validation_millionths: int | None = None  # loss on validation rows, when one was due

    def encoded(self) -> bytes:
        """Canonical bytes, for the journal."""
        return encode(asdict(self))


def decode_report(data: bytes) -> StepReport:
    """The report that `data` spells.

    Raises:
        Malformed: it is none.
    """
    try:
        return _REPORT.validate_python(decode(data))
    except ValidationError as error:
        raise Malformed(f"no step report: {error}") from error


_REPORT = TypeAdapter(StepReport)


class Feed(Protocol):
    """The market's ear: everything that is kept, in order, and the reports."""

    async def post(self, items: Sequence[bytes]) -> None:
        """Hand over encoded kept items; repeating some is harmless.

        Raises:
            Unavailable: try again. Refused, Misbehaved: the market says that they are wrong.
        """

    async def report(self, reports: Sequence[StepReport]) -> None:
        """Hand over reports; errors as `post`."""


class Roster(Protocol):
    """Who has a lease in this job."""

    async def accepted(self) -> Sequence[Signed[LeaseAccept]]:
        """LeaseAccepts that the market has accepted, and whose bond it has seen.

        Raises:
            Unavailable: try again.
        """


@dataclass(frozen=True)
class Wish:
    """What the poster wants of the job; a later wish has a higher number."""

    number: int
    wanted: Literal["running", "paused", "cancelled"]


class Wishes(Protocol):
    """What the poster wants, as the host was told last; it survives a restart of both."""

    def newest(self) -> Wish | None:
        """The wish that counts; None while the poster has said nothing.

        Raises:
            Malformed: what was kept of it is damaged.
        """

    def heeded(self, number: int) -> None:
        """The job is as the wish `number` wants it; told again after a restart."""

    def stands_still(self, why: str) -> None:
        """The job cannot go on without somebody, in words; "" once it can."""


@dataclass(frozen=True)
class Earner:
    """An account that is paid by the job's seals, and what they say of it."""

    pay: Accrual
    stake: int  # that its leases ask for
    works: bool = False  # or may come to; else it only has pay from before
    is_outside: bool = False  # it audits, and has no lease
    is_gone: bool = False  # no machine of it was here for long, and nothing of its pay is open


@dataclass(frozen=True)
class Progress:
    """How far a job is, as who grants limits has to know."""

    earners: Mapping[Address, Earner]
    rounds_left: int  # of work
    seconds_a_round: float  # of late; infinite before there is any
    seconds_of_work: float  # since the first round began
    is_over: bool = False  # the last seal is stored


@dataclass(frozen=True)
class Standings:
    """What the escrow holds for a job at a block with the confirmations that the job asks for."""

    budget: Budget = field(default_factory=Budget)
    channels: Mapping[Address, Channel] = field(default_factory=dict)  # of all who were asked for


class Limits(Protocol):
    """Sets money aside for who works, and says for whom it is."""

    async def look(self, progress: Progress) -> Standings:
        """See that limits are raised and ended that are due, and say how they are on the chain.

        Raises:
            Unavailable: try again; what was said before holds until then.
        """
