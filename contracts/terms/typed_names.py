"""How is a name read that a person typed: an account, a job, a peer, a digest?

Hexadecimal digits, with or without 0x before them and spaces around, of either case. Both cases in
the 20 bytes of an address are a checksum (EIP-55), and one slip in a digit or a case shows.
"""

import re

from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address

ADDRESS_BYTES = 20
_HEX = re.compile("[0-9a-fA-F]*")


def digits_of(text: str) -> str:
    """What is typed of a name, without what stands around its digits."""
    text = text.strip()
    return text[2:] if text[:2] in ("0x", "0X") else text


def parse_name(text: str, what: str, num_bytes: int) -> bytes:
    """The bytes that a person typed; 20 are an address.

    Raises:
        Malformed: no hexadecimal digits, not so many, or an address with a wrong checksum.
    """
    digits = digits_of(text)
    if not _HEX.fullmatch(digits):
        raise Malformed(f"{text!r:.80} is no {what}: {2 * num_bytes} hexadecimal digits")
    if len(digits) != 2 * num_bytes:
        raise Malformed(
            f"{text!r:.80} is no {what}: it has {len(digits)} digits, not {2 * num_bytes}"
        )
    if num_bytes == ADDRESS_BYTES and not _holds(digits):
        raise Malformed(
            f"{text!r:.80} is no {what}: a digit or a capital is wrong, as its checksum (EIP-55) "
            "does not hold; copy it again"
        )
    return bytes.fromhex(digits)


def parse_address(text: str, what: str = "account") -> Address:
    """An account or a contract that a person typed; raises as `parse_name`."""
    return Address(parse_name(text, what, ADDRESS_BYTES))


def _holds(digits: str) -> bool:
    lower = digits.lower()
    if digits in (lower, digits.upper()):
        return True
    capitals = keccak(lower.encode()).hex()
    return digits == "".join(
        digit.upper() if nibble > "7" else digit
        for digit, nibble in zip(lower, capitals, strict=False)  # 40 digits, 64 of the hash
    )
