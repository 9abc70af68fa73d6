"""How structured columns are spelled: values as canonical msgpack, or JSON, and back."""

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import digest
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import InvariantBroken
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.signatures import Signed, decode_signed, expect
from market.bodies.market import WinnerView
from market.domain.quote import WhyNot
from market.service.rows import JobRow, SealRow

WHY_NOT = TypeAdapter(WhyNot)
"""Why a job is not matched, as JSON."""
WINNERS = TypeAdapter(tuple[WinnerView, ...])
"""Who was bought, as JSON."""


def wide(value: object) -> int:
    """An integer that may have travelled as 16 bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value, "big")
    if isinstance(value, int):
        return value
    raise InvariantBroken(f"{value!r} is stored where an integer should be")


def items(data: bytes) -> list[Value]:
    """A stored list."""
    value = decode(data, max_bytes=2**30)
    if not isinstance(value, list):
        raise InvariantBroken("a stored list is none")
    return value


def encode_pay(pay: Sequence[PayLeaf]) -> bytes:
    """Pay leaves as bytes."""
    return encode([[leaf.account, leaf.earned, leaf.vested] for leaf in pay])


def decode_pay(data: bytes) -> tuple[PayLeaf, ...]:
    """Pay leaves from bytes."""
    return tuple(_pay_leaf(each) for each in items(data))


def _pay_leaf(value: Value) -> PayLeaf:
    match value:
        case [bytes(account), earned, vested]:
            return PayLeaf(Address(account), BaseUnits(wide(earned)), BaseUnits(wide(vested)))
    raise InvariantBroken("a stored pay leaf is none")


def encode_arguments(arguments: Mapping[str, Value]) -> bytes:
    """Arguments of a chain event as bytes."""
    return encode(dict(arguments))


def decode_arguments(data: bytes) -> dict[str, Value]:
    """Arguments of a chain event from bytes."""
    value = decode(data, max_bytes=2**30)
    if not isinstance(value, dict):
        raise InvariantBroken("stored arguments are none")
    return value


def stored_name(item: Kept) -> Digest | None:
    """What one item is stored of: a message's `stated_name`, the leaves of a claim; None: any."""
    match item:
        case Signed(message=message):
            name = message.stated_name()
            return None if name is None else name_digest(name)
        case Leaves(claim=claim):
            return name_digest(("leaves", claim))
    return None


def name_digest(name: tuple[object, ...]) -> Digest:
    """A name as rows hold it."""
    return digest("name", encode(list(name)))  # type: ignore[arg-type]  # of plain values


def spec_of(row: JobRow) -> Signed[JobSpec]:
    """The signed spec of a job."""
    return expect(decode_signed(row.signed), JobSpec)


def seal_of(row: SealRow) -> Signed[Seal]:
    """The signed seal."""
    return expect(decode_signed(row.signed), Seal)
