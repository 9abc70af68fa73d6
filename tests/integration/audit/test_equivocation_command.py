"""`tallystick audit compare` and `equivocation` with no network and the base dependencies only."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.audited import paid_job
from tests.support.forging import retold
from tests.support.offline import run_here, run_offline


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job's audit file, and one that everybody has signed again in another way."""
    folder = tmp_path_factory.mktemp("files")
    told = retold(paid_job().job, steps=5)
    (folder / "mine.tally").write_bytes(paid_job().data)
    again = replace(paid_job().file, items=tuple(told.items))
    (folder / "theirs.tally").write_bytes(again.encoded())
    return folder


def compare(files: Path, proof: Path) -> tuple[int, str, str]:
    """`audit compare` of the two files."""
    mine, theirs = str(files / "mine.tally"), str(files / "theirs.tally")
    return run_here("audit", "compare", mine, theirs, "--to", str(proof))


def test_compare__two_histories__write_a_proof_that_anybody_can_check(
    files: Path, tmp_path: Path
) -> None:
    proof = tmp_path / "seal.equivocation"

    code, said, _ = compare(files, proof)
    checked = run_offline("audit", "equivocation", str(proof), folder=tmp_path)

    assert code == 0 and paid_job().job.coordinator.account.hex() in said
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("proven: ")


def test_compare__one_history__is_no_contradiction(files: Path, tmp_path: Path) -> None:
    mine, proof = str(files / "mine.tally"), tmp_path / "none"

    code, _, complaint = run_here("audit", "compare", mine, mine, "--to", str(proof))

    assert (code, proof.exists()) == (3, False)
    assert "no key has said two things" in complaint


def test_equivocation__altered_or_another_file__exits_11_or_12(files: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    compare(files, proof)
    data = bytearray(proof.read_bytes())
    data[data.index(b"signature") + 20] ^= 1
    proof.write_bytes(data)

    altered = run_here("audit", "equivocation", str(proof))
    other = run_here("audit", "equivocation", str(files / "mine.tally"))

    assert (altered[0], other[0]) == (11, 12)
    assert altered[2].startswith("mismatch: ")
    assert other[2] == "error: the file is no equivocation: name another file\n"
