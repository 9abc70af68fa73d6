"""What does not every file system have, and what is done without it?

FAT, exFAT, network shares, FUSE and telephones lack hard links, locks, or the fsync of a folder.
"""

import errno
import fcntl
import os
from pathlib import Path

_LACKING = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def create_private(path: Path) -> int:
    """Descriptor of a new file, mode 0600; raises FileExistsError, OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def publish_new(draft: Path, path: Path) -> None:
    """Give a file its name if no other has it; its name `draft` may stay beside it.

    Raises:
        FileExistsError: somebody has it. OSError: the folder cannot be written.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        os.close(create_private(path))  # who makes the name has it; a kill here leaves it empty
        os.replace(draft, path)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, survive a power cut, where that can be had."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, how: int, path: Path) -> None:
    """`flock` of an open file whose failure names it.

    Raises:
        BlockingIOError: somebody else holds it. OSError: this file system has no locks.
    """
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        error.filename = str(path)
        raise
