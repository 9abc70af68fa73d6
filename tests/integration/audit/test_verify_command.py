"""`tallystick audit verify` with base dependencies only and no network: exit codes and words."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.audited import audited, paid_job, running_job
from tests.support.offline import run_here, verify_here, verify_options


def test_verify__as_json__holds_money_as_strings() -> None:
    code, said, _ = verify_here(paid_job().data, "-o", "json", pins=paid_job().pins)

    found = json.loads(said)
    assert (code, found["verdict"]) == (0, "anchored")
    assert found["escrow"]["funded"] == "100000000"


def test_verify__nothing_of_the_readers_own_or_no_audit_file_or_altered__has_its_code() -> None:
    data = bytearray(paid_job().data)
    data[data.index(b"signature") + 20] ^= 1

    code, said, _ = verify_here(paid_job().data)
    altered, _, complaint = verify_here(bytes(data), pins=paid_job().pins)

    assert (code, "unanchored" in said) == (10, True)
    assert (altered, complaint.partition(": ")[0]) == (11, "mismatch")
    assert verify_here(paid_job().data[:-1])[::2] == (
        12,
        f"error: the file ends early, after {len(paid_job().data) - 1} bytes: fetch it again\n",
    )


def test_verify__paid_more_than_vests__is_a_line_and_exits_11() -> None:
    market, job = running_job()
    market.write_account(job, job.members[0].wallet.account, claimed=9_000_000)
    made = audited(market, job)

    code, said, _ = verify_here(made.data, pins=made.pins)

    assert code == 11
    assert f"0x{job.members[0].wallet.account.hex()}: was paid 9, but its seals vest 0" in said
    assert said.splitlines()[-1].startswith("chain and seals disagree once")


def test_compare__damaged_file__says_which(tmp_path: Path) -> None:
    (tmp_path / "mine.tally").write_bytes(paid_job().data)
    (tmp_path / "theirs.tally").write_bytes(gzip.compress(paid_job().data))
    files = [str(tmp_path / name) for name in ("mine.tally", "theirs.tally")]

    code, _, complaint = run_here("audit", "compare", *files, "--to", str(tmp_path / "proof"))

    assert code == 12 and f"error: {files[1]}: the file is compressed by gzip" in complaint


def test_verify__hash_and_addresses_with_0X__are_taken() -> None:
    own = [word.upper() if word.startswith("0x") else word for word in options()]

    assert verify_here(paid_job().data, *own)[0] == 0


def options() -> list[str]:
    return verify_options(paid_job().pins)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("verify", "missing.tally"), 3, "missing.tally"),
        (("verify", ".", "--anchor", "0x12", "--escrow", "0x34", "--seals", "0x56"), 2, "anchor"),
        (("verify", ".", "--anchor", "0x" + "00" * 32), 2, "--escrow"),
        (("verify", ".", "--escrow", "0x" + "00" * 20), 2, "--anchor"),
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
