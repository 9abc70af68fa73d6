"""What peers say to each other unsigned, and which methods there are to say it in.

A `WireMessage` is a frozen strict record with a kind and version, in the one canonical encoding;
signed messages (`contracts.terms.messages`) travel inside as bytes or as tensors. A `Method` binds
a name to a request, a reply and the bytes that each may have; a transport is built with the
`Methods` it speaks and refuses the rest before it allocates anything. Callers use `ask`, servers
`training.transport.dispatch.Dispatcher`. Units: bytes, milliseconds since the Unix epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from annotated_types import Ge, Le, Len
from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.encoding import decode
from contracts.terms.ids import JobIdField, SessionKey, SessionKeyField
from contracts.terms.messages import Record
from contracts.terms.moments import UnixMillis, UnixMillisField
from training.transport.port import MIB, Deadline, Session

KIB = 2**10
MAX_METHOD_NAME = 100  # bytes, ASCII
MAX_TENSORS = 4096  # of one call or reply
MAX_DEADLINE_MS = 24 * 3600 * 1000
MAX_CLOCK_SKEW = timedelta(minutes=2)

Bound = Annotated[int, Ge(1), Le(2**40)]


class WireMessage(Record):
    """A statement between two peers that nobody signs: TLS says who made it, nobody keeps it."""

    kind: str

    @classmethod
    def decoded(cls, data: bytes, *, max_bytes: int) -> Self:
        """The message that `data` spells.

        Raises:
            TooLarge: more than `max_bytes`. UnknownVersion: another kind. Malformed: the rest.
        """
        value = decode(data, max_bytes=max_bytes)
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            raise errors.Malformed(f"{cls.__name__}: no kind")
        if kind != cls.model_fields["kind"].default:
            raise errors.UnknownVersion(f"{kind[:MAX_METHOD_NAME]!r} is not spoken here", kind=kind)
        return cls.from_value(value)


class OfJob(WireMessage):
    """A question about one job, which whoever answers it has to work for."""

    job: JobIdField


Request = TypeVar("Request", bound=WireMessage)
Answer = TypeVar("Answer", bound=WireMessage)


@dataclass(frozen=True)
class Method(Generic[Request, Answer]):
    """One thing that a peer may ask, and how large question and answer may be (bytes)."""

    name: str
    request: type[Request]
    reply: type[Answer]
    max_header_bytes: int = 16 * KIB
    max_tensor_bytes: int = 0
    """All tensors of a request together."""
    max_tensors: int = 0
    max_reply_header_bytes: int = 16 * KIB
    max_reply_tensor_bytes: int = 0
    max_reply_tensors: int = 0

    def __post_init__(self) -> None:
        if not (self.name.isascii() and 0 < len(self.name) <= MAX_METHOD_NAME):
            raise errors.InvariantBroken(f"method name {self.name!r}")
        if max(self.max_tensors, self.max_reply_tensors) > MAX_TENSORS:
            raise errors.InvariantBroken(f"{self.name}: more than {MAX_TENSORS} tensors")

    def check_request(self, lengths: Sequence[int]) -> None:
        """Refuse a request whose header and tensors have these lengths, if it is too large.

        Raises:
            TooLarge: it is; data: `size`, `limit`.
        """
        limits = (self.max_header_bytes, self.max_tensors, self.max_tensor_bytes)
        _check(f"{self.name}: request", lengths, limits)

    def check_reply(self, lengths: Sequence[int]) -> None:
        """See `check_request`."""
        limits = (self.max_reply_header_bytes, self.max_reply_tensors, self.max_reply_tensor_bytes)
        _check(f"{self.name}: reply", lengths, limits)


def _check(what: str, lengths: Sequence[int], limits: tuple[int, int, int]) -> None:
    header, *tensors = lengths
    sizes = (header, len(tensors), sum(tensors))
    units = ("bytes of header", "tensors", "bytes of tensors")
    for size, limit, unit in zip(sizes, limits, units, strict=True):
        if size > limit:
            raise errors.TooLarge(
                f"{what} of {size} {unit}, {limit} at most", size=size, limit=limit
            )


AnyMethod = Method[Any, Any]


class Methods(dict[str, AnyMethod]):
    """The methods that a process speaks, by name; both sides of a session hold the same ones."""

    def __init__(self, methods: Iterable[AnyMethod]) -> None:
        for method in methods:
            if method.name in self:
                raise errors.InvariantBroken(f"two methods are called {method.name!r}")
            self[method.name] = method

    def named(self, name: str) -> AnyMethod:
        """The method called `name`.

        Raises:
            NotFound: none is.
        """
        if method := self.get(name):
            return method
        raise errors.NotFound(f"no method {name[:MAX_METHOD_NAME]!r} is spoken here")


@dataclass(frozen=True)
class Question(Generic[Request]):
    """A call that is to be answered, by whom TLS and its leaf have proved."""

    caller: SessionKey
    request: Request
    tensors: tuple[memoryview, ...]  # writable, and ours from now on


Answered: TypeAlias = tuple[Answer, Sequence[Buffer]]
"""An answer, and buffers that nobody writes to any more."""


async def ask(
    session: Session,
    method: Method[Request, Answer],
    request: Request,
    tensors: Sequence[Buffer] = (),
    *,
    deadline: Deadline,
    answer_bytes: int | None = None,
) -> tuple[Answer, tuple[memoryview, ...]]:
    """Call `method` and read its answer, which is refused if it has more than `answer_bytes`.

    Returns:
        The decoded answer and its tensors.

    Raises:
        TallystickError: as `Session.call`; also what is wrong with the answer.
    """
    reply = await session.call(
        method.name, request.encoded(), tensors, deadline=deadline, answer_bytes=answer_bytes
    )
    answer = method.reply.decoded(reply.header, max_bytes=method.max_reply_header_bytes)
    return answer, reply.tensors


# ------------------------------------------------------------------------- said by the transport


class Hello(WireMessage):
    """The first frame of either side: who, what time it is there, how much may be in flight."""

    kind: Literal["hello.v2"] = "hello.v2"  # since then both sides beat
    key: SessionKeyField
    at: UnixMillisField
    max_calls: Bound
    max_call_bytes: Bound
    max_reply_bytes: Bound


class Ping(WireMessage):
    """Is anybody there, and what time is it?"""

    kind: Literal["ping.v1"] = "ping.v1"
    at: UnixMillisField


class Pong(WireMessage):
    """Yes, and this is the time here."""

    kind: Literal["pong.v1"] = "pong.v1"
    at: UnixMillisField


PING: Method[Ping, Pong] = Method("peer.ping", Ping, Pong, 256, max_reply_header_bytes=256)

# ------------------------------------------------------------------ said through somebody else

MAX_PASSED_BYTES = 16 * KIB
MAX_ANSWER_BYTES = 255 * MIB + 512 * KIB
MAX_ANSWER_TENSORS = 8


class Passed(WireMessage):
    """Pass this call on to `to`; tensor 0 is its header, its tensors follow."""

    kind: Literal["passed.v1"] = "passed.v1"
    to: SessionKeyField
    method: Annotated[str, Len(1, MAX_METHOD_NAME)]
    milliseconds: Annotated[int, Ge(1), Le(MAX_DEADLINE_MS)]  # that the caller waits
    max_bytes: Bound  # of the answer; a larger one is refused


class PassedBack(WireMessage):
    """What `to` said: header and tensors, or, if it refused, its error as the only tensor."""

    kind: Literal["passed_back.v1"] = "passed_back.v1"
    failed: bool


RELAY = Method(
    "peer.relay",
    Passed,
    PassedBack,
    KIB,
    MAX_PASSED_BYTES,
    MAX_ANSWER_TENSORS,
    max_reply_tensor_bytes=MAX_ANSWER_BYTES,
    max_reply_tensors=MAX_ANSWER_TENSORS,
)


def check_clock(theirs: UnixMillis, ours: UnixMillis) -> None:
    """Refuse a clock that is off by more than two minutes (docs/architecture.md 5).

    Raises:
        Expired: it is; data: `skew_ms`, theirs minus ours.
    """
    skew = theirs - ours
    if abs(skew) > MAX_CLOCK_SKEW / timedelta(milliseconds=1):
        raise errors.Expired(
            f"clocks differ by {skew / 1000:.0f} s, two minutes at most", skew_ms=skew
        )
