"""Where contracts keep what, and whether code is ours."""

import pytest

from contracts.chain.layout import Shipped, as_address, shipped
from contracts.terms.errors import InvariantBroken, WrongBytes
from contracts.terms.ids import Address
from tests.support.fake_chain import with_immutables

LAYOUT = {
    "storage": [{"label": "plain", "slot": "2", "offset": 4, "type": "t_uint64"}],
    "types": {"t_uint64": {"numberOfBytes": "8"}},
}
CODE = b"\xfe" * 10 + bytes(32) + b"\xfd" * 5 + bytes(32)
MADE = Shipped("Made", CODE, {"owner": [10, 47]}, LAYOUT)


def test_place__plain_variable__has_its_slot_and_offset_and_a_missing_one_is_our_own_bug() -> None:
    place = MADE.place("plain")

    assert place.slots == (2,)
    assert place.read([5 << 32]) == {"": 5}
    with pytest.raises(InvariantBroken):
        MADE.place("missing")


def test_read_immutables__deployed_code__holds_the_values() -> None:
    owner = bytes(12) + b"o" * 20
    code = with_immutables(MADE, {"owner": owner})

    assert MADE.read_immutables(code) == {"owner": owner}
    assert as_address(owner) == Address(b"o" * 20)


@pytest.mark.parametrize(
    "code",
    [
        b"",
        CODE[:-1],
        CODE + b"\0",
        b"\xfd" + CODE[1:],
        CODE[:10] + b"\1" * 32 + CODE[42:],  # one of two places
    ],
)
def test_read_immutables__other_code__is_refused(code: bytes) -> None:
    with pytest.raises(WrongBytes):
        MADE.read_immutables(code)
    with pytest.raises(WrongBytes):
        as_address(b"\1" + bytes(31))


def test_shipped__escrow__names_its_immutables_and_state() -> None:
    escrow = shipped("JobEscrow")

    assert {"token", "slasher", "canceller", "TAIL"} <= set(escrow.immutables)
    granted, bonds = (escrow.place(each, b"j" * 32, b"a" * 20) for each in ("granted", "bonds"))
    assert {each.name for each in granted.members} == {"limit", "claimed", "earned", "ended"}
    assert len(granted.slots) == len(bonds.slots) == 1 and granted.slots != bonds.slots
