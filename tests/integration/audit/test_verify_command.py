"""`tallystick audit verify` with base dependencies only and no network: exit codes and words."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.audited import settled
from tests.support.history import SETTLEMENT
from tests.support.offline import run_here, verify_here


def test_verify__as_json__holds_money_as_strings() -> None:
    own = {"anchor": settled().anchor, "settlement": SETTLEMENT}

    code, said, _ = verify_here(settled().data, "-o", "json", **own)

    found = json.loads(said)
    assert (code, found["verdict"]) == (0, "anchored")
    assert found["escrow"]["deposited"] == "100000000"


def test_verify__nothing_of_the_readers_own_or_no_audit_file_or_altered__has_its_code() -> None:
    own = {"anchor": settled().anchor, "settlement": SETTLEMENT}
    data = bytearray(settled().data)
    data[-40] ^= 1

    code, said, _ = verify_here(settled().data)
    altered, _, complaint = verify_here(bytes(data), **own)

    assert (code, "unanchored" in said) == (10, True)
    assert (altered, complaint.partition(": ")[0]) == (11, "mismatch")
    assert verify_here(settled().data[:-1])[::2] == (
        12,
        f"error: the file ends early, after {len(settled().data) - 1} bytes: fetch it again\n",
    )


def test_compare__damaged_file__says_which(tmp_path: Path) -> None:
    (tmp_path / "mine.tally").write_bytes(settled().data)
    (tmp_path / "theirs.tally").write_bytes(gzip.compress(settled().data))
    files = [str(tmp_path / name) for name in ("mine.tally", "theirs.tally")]

    code, _, complaint = run_here("audit", "compare", *files, "--to", str(tmp_path / "proof"))

    assert code == 12 and f"error: {files[1]}: the file is compressed by gzip" in complaint


def test_verify__hash_and_address_with_0X__are_taken() -> None:
    anchor, settlement = (f"0X{each.hex().upper()}" for each in (settled().anchor, SETTLEMENT))

    code, _, _ = verify_here(settled().data, "--anchor", anchor, "--settlement", settlement)

    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("verify", "missing.tally"), 3, "missing.tally"),
        (("verify", ".", "--anchor", "0x12", "--settlement", "0x34"), 2, "anchor"),
        (("verify", ".", "--anchor", "0x" + "00" * 32), 2, "settlement"),
        (("export", "12", "--to", "x"), 2, "64"),
        (("export", "00" * 32, "--to", "x", "--market", "http://127.0.0.1:1"), 8, "is it up?"),
    ],
)
def test_audit__wrong_arguments__one_clear_error(
    arguments: tuple[str, ...], code: int, word: str
) -> None:
    status, _, complaint = run_here("audit", *arguments)

    assert (status, word in complaint) == (code, True), complaint
    assert len(complaint.strip().splitlines()) == 1
