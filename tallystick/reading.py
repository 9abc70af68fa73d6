"""A file is read whole, or refused in words that name it."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge

M = TypeVar("M", bound=BaseModel)


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
