"""How is a file replaced so that no reader and no kill ever finds half of it?"""

import os
import secrets
from pathlib import Path

from contracts.disk import sync
from contracts.terms.errors import Refused

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
