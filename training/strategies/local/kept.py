"""The vectors of a round in work, on disk beside what they are, with torch.

A file under its final name is whole: written aside, synced, renamed. No more than `PART` elements
are copied at a time, as the vectors of a large model leave no room for a second one.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contracts.disk import sync
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, Unavailable
from training.memory import FP32

PART = 2**22  # elements
MAX_ABOUT_BYTES = 2**26
_LENGTH_BYTES = 8


def write_vectors(path: Path, about: Value, vectors: Sequence[Tensor]) -> None:
    """Store flat fp32 vectors, and what they are.

    Raises:
        Unavailable: the disk is full or cannot be written; a file from before stays.
    """
    head, aside = encode(about), path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(len(head).to_bytes(_LENGTH_BYTES, "big") + head)
            for vector in vectors:
                for part in vector.split(PART):
                    file.write(memoryview(part.cpu().numpy()))
        sync(aside)
        os.replace(aside, path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error}", path=str(path)) from error


def read_about(path: Path) -> Value:
    """What the vectors of a file are.

    Raises:
        Malformed: there is no such file, or it is none of these.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
            return decode(file.read(min(size, MAX_ABOUT_BYTES)), max_bytes=MAX_ABOUT_BYTES)
    except OSError as error:
        raise Malformed(f"cannot read {path}: {error}", path=str(path)) from error


def read_vectors(path: Path, vectors: Sequence[Tensor]) -> None:
    """Fill vectors with those of a file.

    Raises:
        Malformed: it has fewer elements, or more. Then some are changed.
    """
    buffer = memoryview(bytearray(FP32 * PART))
    try:
        with path.open("rb") as file:
            file.seek(int.from_bytes(file.read(_LENGTH_BYTES), "big"), os.SEEK_CUR)
            for vector in vectors:
                for own in vector.split(PART):
                    data = buffer[: FP32 * len(own)]
                    if file.readinto(data) != len(data):
                        raise Malformed(f"{path} is cut short", path=str(path))
                    own.copy_(torch.frombuffer(data, dtype=torch.float32))
            if file.read(1):
                raise Malformed(f"{path} is of a larger model", path=str(path))
    except OSError as error:
        raise Malformed(f"cannot read {path}: {error}", path=str(path)) from error
