"""How is a unix socket bound or reached whose path is longer than a socket's address may be?

An address holds 107 bytes; test folders and homes are longer. The folder is opened, and the name
in it goes through /proc/self/fd.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A short address that means `path` as long as the block lasts.

    Raises:
        OSError: there is no such folder.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
