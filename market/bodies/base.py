"""What all bodies have in common: fields and their bounds, the strict class, how one is read."""

from typing import Annotated, Any, ClassVar, Self, TypeVar

from annotated_types import Ge, Le, Len
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)

from contracts.terms.amounts import UINT64_MAX, UINT96_MAX, BaseUnits, PricePerPflop
from contracts.terms.errors import Malformed
from contracts.terms.ids import Hex

MAX_JSON_BYTES = 2**20
MAX_FAILURE = 300  # characters of why something could not be done
MAX_BLOB_BYTES = 64 * 2**20  # of what is read whole into memory: a shard, a part of weights
MAX_BUNDLE_BYTES = 2 * 2**30  # of evidence, which is streamed; so of any blob that is put
MAX_MESSAGES_BYTES = 16 * 2**20  # of one post; a single item has the bound of `encoding`
MAX_MESSAGES_POSTED = 10_000
MAX_REPORTS = 10_000
MESSAGES_PAGE = 500
BEACONS_PAGE = 500
ANCHOR_CHAIN_PAGE = 200  # batches
LIST_PAGE = 1000  # of anything that has a cursor
CLOCK_SKEW_MILLIS = 120_000
API_PREFIX = "/v1"


def _from_text(value: object, info: ValidationInfo) -> object:
    """JSON numbers lose digits, so an amount is text there and an integer in Python."""
    if info.mode != "json":
        return value
    if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
        raise ValueError("an amount is a string of decimal digits")
    if len(value) > 40:
        raise ValueError("an amount has at most 40 digits")
    return int(value)


def _integer(unit: str) -> tuple[Any, ...]:
    what = {"type": "string", "pattern": "^[0-9]+$", "description": f"decimal integer{unit}"}
    as_text = PlainSerializer(str, return_type=str, when_used="json")
    return BeforeValidator(_from_text), as_text, WithJsonSchema(what)


Money = Annotated[BaseUnits, *_integer(": base units, 1e-6 token"), Ge(0), Le(UINT96_MAX)]
Price = Annotated[
    PricePerPflop, *_integer(": base units a PFLOP, 1e-6 token"), Ge(0), Le(UINT64_MAX)
]
Wide = Annotated[int, *_integer(""), Ge(0)]

SignedField = Annotated[bytes, Len(1, MAX_JSON_BYTES // 2), Hex()]
SignatureField = Annotated[bytes, Len(64, 65), Hex()]
Endpoint = Annotated[str, Field(min_length=3, max_length=256, pattern=r"^[^\s:]+:\d{1,5}$")]
Chance = Annotated[str, Field(min_length=3, pattern=r"^(0x)?[0-9a-f]+/(0x)?[0-9a-f]+$")]
DeviceClass = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\x20-\x7e]+$")]
Cursor = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[0-9A-Za-z_-]+$")]
Failure = Annotated[str, Field(max_length=MAX_FAILURE, pattern=r"^[\x20-\x7e]*$")]


class Body(BaseModel):
    """A frozen, strict JSON body."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        ser_json_bytes="hex",
        val_json_bytes="hex",
        defer_build=True,  # a program uses few of two hundred
    )

    columns: ClassVar[tuple[str, ...]] = ()  # of a table whose rows these are

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """A body of `others`, and of the attributes of `source` that are called as its fields are.

        Types and bounds are checked as those of any body.
        """
        names = cls.model_fields.keys() - others.keys()
        return cls.model_validate({name: getattr(source, name) for name in names} | others)

    def json_bytes(self) -> bytes:
        """The body as JSON."""
        return self.model_dump_json().encode()


class Problem(Body):
    """RFC 9457; `code` is stable, `data` holds what a program may act on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    data: dict[str, Any]


class SignedBody(Body):
    """A signed message."""

    signed: SignedField


class Part(Body):
    """A part of a list; what is inserted meanwhile moves nothing from one part to another."""

    rows: ClassVar[str]  # the field with the list
    place: ClassVar[str] = "after"  # the query that says where a part begins
    most: ClassVar[int]  # rows of one part

    def behind(self) -> object:
        """Return the value of `place` with which the next part is asked for; None at the end."""
        if "next" in type(self).model_fields:
            return getattr(self, "next")  # noqa: B009
        rows = getattr(self, self.rows)
        return rows[-1].step if len(rows) == self.most else None


class Page(Part):
    """A part of a list that has a cursor."""

    place: ClassVar[str] = "cursor"
    most: ClassVar[int] = LIST_PAGE

    next: Cursor | None = None  # the `cursor` of what follows; None at the end


class Stored(Body):
    """How many items were new, and how many were known before."""

    stored: int
    known: int


B = TypeVar("B", bound=Body)


def read_body(cls: type[B], data: bytes) -> B:
    """The body of type `cls` in `data`.

    Raises:
        Malformed: not JSON, or a field is missing, unknown, of another type or out of bounds.
    """
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Malformed(f"{where or 'body'}: {first['msg']}", field=where) from error
