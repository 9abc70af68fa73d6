"""Names that a person typed: any case, with or without 0x; an address with its checksum."""

import pytest

from contracts.terms.errors import Malformed
from contracts.terms.typed_names import parse_address, parse_name

# The first two are of EIP-55 itself.
CHECKSUMMED = (
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf",
)


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_address__as_people_write_it__is_read(text: str) -> None:
    digits = text[2:]

    for form in (text, digits, f"0X{digits}", f" {text}\n", digits.lower(), digits.upper()):
        assert parse_address(form).hex() == digits.lower()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 digits"),
        ("0x", "0 digits"),
        ("0x0x" + "ab" * 31, "hexadecimal"),
        ("ab " * 32, "hexadecimal"),
        ("\uff11" * 64, "hexadecimal"),
        ("ab" * 31, "62 digits, not 64"),
        ("g" * 64, "hexadecimal"),
    ],
)
def test_name__that_is_none__says_why(text: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parse_name(text, "job id", 32)


def test_name__of_32_bytes__has_no_checksum() -> None:
    assert parse_name("aB" * 32, "job id", 32) == b"\xab" * 32
