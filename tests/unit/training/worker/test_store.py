"""Bytes by digest on disk: what is there whole, what goes, and what an earlier process has left."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import StepNumber
from tests.support.history import make_digest
from training.worker.store import EVIDENCE, Store

ONE, TWO = StepNumber(1), StepNumber(2)
A, B = make_digest("a"), make_digest("b")


def test_store__bytes_of_two_rounds__stay_until_the_last_of_them_goes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("shards", ONE, A, b"same")
    store.put("lent", TWO, A, b"same")

    store.drop(EVIDENCE, lambda round: round > ONE)

    assert (store.read(A), store.newest_round(A), [*store.rounds()]) == (b"same", TWO, [TWO])
    store.drop(EVIDENCE, lambda _: False)
    assert not store.has(A)
    with pytest.raises(NotFound):
        store.read(A)


def test_store__narrowed__only_named_evidence_of_the_round_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for digest in (A, B):
        store.put("tensors", ONE, digest, b"x")
    store.put("tensors", TWO, B, b"x")
    store.put("buckets", ONE, make_digest("bucket"), b"x")

    store.narrow(ONE, {A})

    assert [store.newest_round(digest) for digest in (A, B)] == [ONE, TWO]
    assert store.has(make_digest("bucket"))
    assert len([*(tmp_path / "tensors").rglob("*.bin")]) == 2


def test_store__after_a_restart__bytes_are_here_but_not_believed(tmp_path: Path) -> None:
    Store(tmp_path).put("buckets", ONE, A, b"half")

    store = Store(tmp_path)

    assert store.has(A) and not store.is_checked(A)
    store.note_checked(A, is_right=False)
    assert not store.has(A) and not [*tmp_path.rglob("*.bin")]


def test_store__what_others_have_too__is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    Store(tmp_path).put("shards", ONE, A, b"shard")

    assert synced == []


def test_store__several_threads_keep_one_shard__it_is_whole_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    store, data = Store(tmp_path), bytes(100_000)

    with ThreadPoolExecutor(4) as threads:
        kept = [threads.submit(store.put, "lent", ONE, A, data) for _ in range(12)]

    assert [each.exception() for each in kept] == [None] * 12
    assert store.read(A) == data
    assert len(list(tmp_path.rglob("*.*"))) == 1
