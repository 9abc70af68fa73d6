"""`SIGKILL` at any moment of preparing data: the same call ends with the same manifest."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import preparing
from tests.support.patience import patience
from training.data.manifest import index_of
from training.data.prepare import load_prepared

DOCUMENTS = preparing.texts(6000)


def started(sources: Path, folder: Path) -> subprocess.Popen[str]:
    """A process that has found its files and begins."""
    command = [sys.executable, "-m", "tests.support.preparing", str(sources), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == preparing.READY
    return process


def ended(process: subprocess.Popen[str]) -> str:
    """What it prints at its end."""
    with process:
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(timeout=patience(60)) == 0
        return said.strip()


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_prepare__killed_at_any_moment__same_digest_and_all_shards_as_they_are_named(
    kills: int, tmp_path: Path
) -> None:
    draw = random.Random(kills)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.txt").write_text("".join(f"{text}\n" for text in DOCUMENTS[:2000]))
    preparing.write_json_lines(sources / "b.jsonl", DOCUMENTS[2000:4000])
    preparing.write_parquet(sources / "c.parquet", DOCUMENTS[4000:5000])
    preparing.write_arrow(sources / "d.arrow", DOCUMENTS[5000:])
    process, began = started(sources, tmp_path / "whole"), time.monotonic()
    whole = ended(process)
    took = time.monotonic() - began

    for _ in range(kills):
        with started(sources, tmp_path / "killed") as process:
            time.sleep(draw.uniform(0, took / 2))
            process.kill()

    assert ended(started(sources, tmp_path / "killed")) == whole
    assert ended(started(sources, tmp_path / "killed")) == whole  # once more does nothing
    prepared = load_prepared(tmp_path / "killed")
    assert len(prepared.manifest.train) > 2
    for path in sorted((tmp_path / "killed").glob("*-?????")):
        with path.open("rb") as file:
            assert index_of(file).encoded() == path.with_suffix(".index").read_bytes()
