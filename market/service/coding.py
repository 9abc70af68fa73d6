"""How structured columns are spelled: canonical msgpack in, values out."""

from collections.abc import Mapping, Sequence

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec, LeaseAccept, Seal
from contracts.terms.signatures import Signed, decode_signed, expect
from market.domain.matching import Exclusion
from market.service.rows import AuditBondRow, JobRow, LeaseRow, SealRow


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


def encode_exclusions(found: Sequence[Exclusion]) -> bytes:
    """Why-not counts as bytes."""
    return encode([[each.constraint, each.offers, each.would_fit] for each in found])


def decode_exclusions(data: bytes) -> tuple[Exclusion, ...]:
    """Why-not counts from bytes."""
    return tuple(_exclusion(each) for each in items(data))


def _exclusion(value: Value) -> Exclusion:
    match value:
        case [str(constraint), int(offers), str(would_fit)]:
            return Exclusion(constraint, offers, would_fit)
    raise InvariantBroken("a stored exclusion is none")


def encode_arguments(arguments: Mapping[str, Value]) -> bytes:
    """Arguments of a chain event as bytes."""
    return encode(dict(arguments))


def decode_arguments(data: bytes) -> dict[str, Value]:
    """Arguments of a chain event from bytes."""
    value = decode(data, max_bytes=2**30)
    if not isinstance(value, dict):
        raise InvariantBroken("stored arguments are none")
    return value


def spec_of(row: JobRow) -> Signed[JobSpec]:
    """The signed spec of a job."""
    return expect(decode_signed(row.signed), JobSpec)


def accept_of(row: LeaseRow | AuditBondRow) -> Signed[LeaseAccept]:
    """The signed LeaseAccept of a row that has one."""
    if row.accept is None:
        raise InvariantBroken(f"0x{row.account.hex()} has signed no LeaseAccept of {row.job.hex()}")
    return expect(decode_signed(row.accept), LeaseAccept)


def seal_of(row: SealRow) -> Signed[Seal]:
    """The signed seal."""
    return expect(decode_signed(row.signed), Seal)
