"""The vectors of a round in work, on disk beside what they are, with torch.

A file under its final name is whole: written aside, synced, renamed. It ends with the digest of the
rest, as a claim of weights that a disk has altered would cost an honest peer its stake. No more
than `PART` elements are copied at a time: vectors of a large model leave no room for a second one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from contracts.disk import sync
from contracts.terms.digest import BlobHasher
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, Unavailable
from training.memory import FP32

PART = 2**22  # elements
MAX_ABOUT_BYTES = 2**26
_LENGTH_BYTES, _DIGEST_BYTES = 8, 32


def write_vectors(path: Path, about: Value, vectors: Sequence[Tensor]) -> None:
    """Store flat fp32 vectors, and what they are.

    Raises:
        Unavailable: the disk is full or cannot be written; a file from before stays.
    """
    head, aside, hasher = encode(about), path.with_suffix(".tmp"), BlobHasher()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            for data in _formed(head, vectors):
                hasher.update(data)
                file.write(data)
            file.write(hasher.digest())
        sync(aside)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise Unavailable(f"cannot write {path}: {error}", path=str(path)) from error


def _formed(head: bytes, vectors: Sequence[Tensor]) -> Iterator[bytes | memoryview]:
    yield len(head).to_bytes(_LENGTH_BYTES, "big") + head
    for vector in vectors:
        for part in vector.split(PART):
            yield memoryview(part.cpu().numpy())


def read_about(path: Path) -> Value:
    """What the vectors of a file are.

    Raises:
        Malformed: there is no such file, or it is none of these.
    """
    with _reading(path), path.open("rb") as file:
        return decode(_head(file)[_LENGTH_BYTES:], max_bytes=MAX_ABOUT_BYTES)


def read_vectors(path: Path, vectors: Sequence[Tensor]) -> None:
    """Fill vectors with those of a file.

    Raises:
        Malformed: it has fewer elements, or more, or is damaged. Then they are changed.
    """
    buffer, hasher = memoryview(bytearray(FP32 * PART)), BlobHasher()
    with _reading(path), path.open("rb") as file:
        hasher.update(_head(file))
        for vector in vectors:
            for own in vector.split(PART):
                data = buffer[: FP32 * len(own)]
                if file.readinto(data) != len(data):
                    raise Malformed(f"{path} is cut short", path=str(path))
                hasher.update(data)
                own.copy_(torch.frombuffer(data, dtype=torch.float32))
        if file.read(_DIGEST_BYTES + 1) != hasher.digest():
            raise Malformed(f"{path} is damaged", path=str(path))


def _head(file: BinaryIO) -> bytes:
    length = file.read(_LENGTH_BYTES)
    return length + file.read(min(int.from_bytes(length, "big"), MAX_ABOUT_BYTES))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Malformed(f"cannot read {path}: {error}", path=str(path)) from error
