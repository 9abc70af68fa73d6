"""Files that a verb reads and writes: whole or not at all, and errors that say which."""

from pathlib import Path

from contracts.terms.errors import NotFound, Refused, TooLarge
from tallystick.files import BY_UMASK, replace_file


def read(path: Path, most_bytes: int) -> bytes:
    """All bytes of a file.

    Raises:
        NotFound: there is none. Refused: it is none, or cannot be read. TooLarge.
    """
    try:
        if path.exists() and not path.is_file():  # a device may never end
            what = "a folder" if path.is_dir() else "no file"
            raise Refused(f"cannot read {path}: it is {what}")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if len(data) > most_bytes:
        raise TooLarge(f"{path} is larger than any such file ({most_bytes} bytes)")
    return data


def write(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all; raises Refused."""
    try:
        replace_file(path, data, mode=BY_UMASK, durable=False)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
