"""How are files kept that hold a secret? Mode 0600, made once, never overwritten.

Whoever may read one besides its owner is reported each time that a process reads it, by the rule
of ssh. It is no refusal, because FAT, exFAT and many network shares know no modes.
"""

import contextlib
import functools
import logging
import os
import secrets
import stat
from pathlib import Path

from contracts.disk import create_private, publish_new, sync
from contracts.terms.errors import Malformed, NotFound, Refused

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

log = logging.getLogger(__name__)


def read_secret(path: Path) -> bytes:
    """All bytes of a file that is its owner's alone; says so where it is not.

    Raises:
        NotFound: there is none. Refused: it cannot be read.
    """
    try:
        data = path.read_bytes()
        tell_if_exposed(path)
    except FileNotFoundError as error:
        raise NotFound(f"no key file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    return data


def create_secret(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all, and never replaces another.

    Raises:
        Refused: it exists already, or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with contextlib.suppress(FileExistsError):  # no folder there: the next line says so
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(create_private(draft), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish_new(draft, path)
        sync(path.parent)
    except FileExistsError as error:
        raise Refused(f"{path} exists already and is never overwritten") from error
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def load_token(path: Path) -> str:
    """The token or password in a file; raises as `read_secret`.

    Raises:
        Malformed: there is none in it; an empty one would let everybody in.
    """
    token = read_secret(path).decode("ascii", "replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise Malformed(f"{path} holds no token: put back what it held")
    return token


def load_or_create_token(path: Path) -> str:
    """See `load_token`; made on first use, also if somebody else makes it at the same time."""
    if not path.exists():
        try:
            create_secret(path, secrets.token_hex(32).encode() + b"\n")
        except Refused:
            if not path.exists():
                raise
    return load_token(path)


def tell_if_exposed(path: Path) -> None:
    """Say once that others may read a file that is ours; raises OSError."""
    found = path.stat()
    if found.st_uid == os.getuid() and found.st_mode & _OTHERS:
        _tell(path, stat.S_IMODE(found.st_mode))


@functools.cache  # a process says it once
def _tell(path: Path, mode: int) -> None:
    log.warning(
        "warning: %s holds a secret, and others may read it (mode %04o): chmod 600 '%s'",
        *(path, mode, path),
    )
