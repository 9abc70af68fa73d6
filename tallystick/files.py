"""A file is read or written whole or not at all; no reader and no kill ever finds half of it."""

import os
import secrets
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from contracts.disk import sync
from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge

M = TypeVar("M", bound=BaseModel)

OWNER_ONLY = 0o600
BY_UMASK = 0o666


def replace_file(path: Path, data: bytes, *, mode: int = OWNER_ONLY, durable: bool = True) -> None:
    """Write `data` beside `path` and rename it; a durable file survives a power cut from then on.

    Raises:
        OSError: the disk is full or cannot be written; the file is as it was.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that a person named; raises Refused, which says which."""
    try:
        replace_file(path, data, mode=BY_UMASK, durable=False)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error


def read_whole(path: Path, most_bytes: int, *, what: str = "file") -> bytes:
    """All bytes of a file that a person named; `what` should be there.

    Raises:
        NotFound: there is none. Refused: it is none, or cannot be read. TooLarge.
    """
    try:
        if path.exists() and not path.is_file():  # a device may never end
            found = "a folder" if path.is_dir() else "no file"
            raise Refused(f"cannot read {path}: it is {found}")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no {what} {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if len(data) > most_bytes:
        raise TooLarge(f"{path} is larger than any {what} ({most_bytes} bytes)", limit=most_bytes)
    return data


def read_kept(cls: type[M], path: Path, remedy: str) -> M | None:
    """What a file holds that this program wrote; None: there is none.

    Raises:
        Malformed: it is damaged; says `remedy`.
    """
    try:
        return cls.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, Malformed) as error:
        raise Malformed(f"{path} is damaged{remedy}") from error
