"""Parts and means on disk: what is synced, and what several threads do to one file."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.terms.digest import digest
from contracts.terms.ids import ChunkIndex, StepNumber
from training.worker.store import Store

STEP, CHUNK, COMMIT = StepNumber(3), ChunkIndex(1), digest("test", b"commit")
PARTS = [b"first", b"second"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind of thing was synced, in order."""
    found: list[str] = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append("folder" if path.is_dir() else "file")

    monkeypatch.setattr(os, "fsync", sync)
    return found


def test_store__bound_parts__are_synced_and_so_are_their_names(
    tmp_path: Path, synced: list[str]
) -> None:
    store = Store(tmp_path)

    store.bind_parts(STEP, COMMIT, PARTS)

    assert [store.part(STEP, COMMIT, ChunkIndex(chunk)) for chunk in range(2)] == PARTS
    assert synced == ["file", "file", "folder", "folder"]


def test_store__bound_mean__is_synced_and_so_is_its_name(tmp_path: Path, synced: list[str]) -> None:
    store = Store(tmp_path)

    store.bind_chunk(STEP, CHUNK, b"mean")

    assert store.chunk(STEP, CHUNK) == b"mean"
    assert synced == ["file", "folder", "folder"]


def test_store__what_others_have_too__is_not_synced(tmp_path: Path, synced: list[str]) -> None:
    store = Store(tmp_path)

    store.put_part(STEP, COMMIT, CHUNK, b"part")
    store.put_chunk(STEP, CHUNK, b"mean")

    assert (store.find_part(COMMIT, CHUNK), store.chunk(STEP, CHUNK)) == (b"part", b"mean")
    assert synced == []


def test_store__several_threads_keep_one_part__it_is_whole_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    store, data = Store(tmp_path), bytes(100_000)

    with ThreadPoolExecutor(4) as threads:
        kept = [threads.submit(store.put_part, STEP, COMMIT, CHUNK, data) for _ in range(12)]

    assert [each.exception() for each in kept] == [None] * 12
    assert store.part(STEP, COMMIT, CHUNK) == data
    assert len(list(tmp_path.rglob("*.*"))) == 1
