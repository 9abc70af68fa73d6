"""Gradient parts and averaged chunks on a worker's disk.

Invariants: a file is there whole or not at all, whenever the process is killed; what a message of
ours binds survives a power cut from before it is signed (`bind_...`), what others can give us again
does not have to (`put_...`); nothing is read without a check of its digest by whoever uses it.
All of it blocks, so it is for threads; several of them may keep the same file at once.
Layout: `parts/<step>/<GradCommit>-<chunk>.bin`, `chunks/<step>/<chunk>.bin`, wire bytes; and
`pay.bin`, what the newest seal pays to whom (`contracts.governance.claims.SealedPay`).
"""

import os
import shutil
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from typing_extensions import Buffer

from contracts.disk import sync
from contracts.terms.errors import Unavailable
from contracts.terms.ids import ChunkIndex, Digest, StepNumber

PAY_FILE = "pay.bin"
_OWN = ".own"
"""An empty file beside the parts of a gradient of ours, by the name of its GradCommit."""


class Store:
    """The files under one folder."""

    def __init__(self, folder: Path) -> None:
        self._parts, self._chunks = folder / "parts", folder / "chunks"
        self._pay = folder / PAY_FILE

    def put_pay(self, data: bytes) -> None:
        """Keep what the newest seal pays, in place of the one before; errors as `put_chunk`."""
        write_whole(self._pay, data)

    def bind_parts(self, step: StepNumber, commit: Digest, parts: Sequence[Buffer]) -> None:
        """Keep all parts of a gradient of ours, chunk by chunk; errors as `put_chunk`."""
        write_whole(self._parts / f"{step:08d}" / f"{commit.hex()}{_OWN}", b"")
        paths = [self._part(step, commit, ChunkIndex(chunk)) for chunk in range(len(parts))]
        for path, data in zip(paths, parts, strict=True):
            write_whole(path, data, synced=True)
        _sync_folders(paths[-1])

    def put_part(self, step: StepNumber, commit: Digest, chunk: ChunkIndex, data: Buffer) -> None:
        """Keep one part of somebody's gradient; errors as `put_chunk`."""
        write_whole(self._part(step, commit, chunk), data)

    def part(self, step: StepNumber, commit: Digest, chunk: ChunkIndex) -> bytes | None:
        """A part that is here."""
        return _read(self._part(step, commit, chunk))

    def has_part(self, step: StepNumber, commit: Digest, chunk: ChunkIndex) -> bool:
        """Whether a part of this step is here."""
        return self._part(step, commit, chunk).exists()

    def find_part(self, commit: Digest, chunk: ChunkIndex) -> bytes | None:
        """A part that is here, of whatever step."""
        for folder in sorted(self._parts.glob("*"), reverse=True):
            if (data := _read(folder / _part_name(commit, chunk))) is not None:
                return data
        return None

    def bind_chunk(self, step: StepNumber, chunk: ChunkIndex, data: Buffer) -> None:
        """Keep one averaged chunk that we have summed; errors as `put_chunk`."""
        path = self._chunk(step, chunk)
        write_whole(path, data, synced=True)
        _sync_folders(path)

    def put_chunk(self, step: StepNumber, chunk: ChunkIndex, data: Buffer) -> None:
        """Keep one averaged chunk that a seal names.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        write_whole(self._chunk(step, chunk), data)

    def chunk(self, step: StepNumber, chunk: ChunkIndex) -> bytes | None:
        """An averaged chunk that is here."""
        return _read(self._chunk(step, chunk))

    def steps(self) -> frozenset[StepNumber]:
        """Steps of which parts may be here."""
        return frozenset(map(_step_of, _folders(self._parts)))

    def drop_parts(self, step: StepNumber, but: Collection[StepNumber] = ()) -> None:
        """Forget the parts of all steps up to `step` but some."""
        _drop(self._parts, step, but)

    def narrow(self, step: StepNumber, commits: Collection[Digest]) -> None:
        """Forget the parts of a step but those of some GradCommits."""
        names = {commit.hex() for commit in commits}
        for path in self._parts.glob(f"{step:08d}/*.bin"):
            if path.name.partition("-")[0] not in names:
                path.unlink(missing_ok=True)

    def drop_parts_of_others(self, step: StepNumber) -> None:
        """Forget the parts of a step that are not of a gradient of ours."""
        own = self._parts.glob(f"{step:08d}/*{_OWN}")
        self.narrow(step, [Digest(bytes.fromhex(path.stem)) for path in own])

    def drop_chunks(self, step: StepNumber) -> None:
        """Forget the chunks of all steps up to `step`."""
        _drop(self._chunks, step)

    def drop_all(self) -> None:
        """Forget everything."""
        for folder in (self._parts, self._chunks):
            shutil.rmtree(folder, ignore_errors=True)

    def _part(self, step: StepNumber, commit: Digest, chunk: ChunkIndex) -> Path:
        return self._parts / f"{step:08d}" / _part_name(commit, chunk)

    def _chunk(self, step: StepNumber, chunk: ChunkIndex) -> Path:
        return self._chunks / f"{step:08d}" / f"{chunk:04d}.bin"


def _part_name(commit: Digest, chunk: ChunkIndex) -> str:
    return f"{commit.hex()}-{chunk:04d}.bin"


def write_whole(path: Path, data: Buffer, *, synced: bool = False) -> None:
    """Replace a file so that it is there whole or not at all; raises Unavailable."""
    aside = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")  # another thread has its own
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def _sync_folders(path: Path) -> None:
    """The names on the way to a file survive too: its own, and that of the step's folder."""
    for folder in (path.parent, path.parent.parent):
        try:
            sync(folder)
        except OSError as error:
            raise Unavailable(f"cannot sync {folder}: {error.strerror}") from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


def _folders(folder: Path) -> list[Path]:
    return [each for each in folder.glob("*") if each.name.isdecimal()]


def _step_of(folder: Path) -> StepNumber:
    return StepNumber(int(folder.name))


def _drop(folder: Path, step: StepNumber, but: Collection[StepNumber] = ()) -> None:
    for each in _folders(folder):
        if _step_of(each) <= step and _step_of(each) not in but:
            shutil.rmtree(each, ignore_errors=True)
