"""Where does the data of a job lie? Files of this machine, and URLs that `fsspec` opens.

A name is a path or pattern of this machine, or a URL of a file or pattern (`file://`, `s3://`,
`https://`, `hf://` and what else `fsspec` knows); a folder counts where `datasets` saved one.
Credentials are those of the poster's environment. What may hold one (the user and the query of a
URL) is part of no name, and neither name nor stamp leaves the poster's machine.
"""

import glob
import io
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from contracts.terms.errors import (
    Malformed,
    NotFound,
    Refused,
    ServiceUnreachable,
    TallystickError,
)
from training.content import need_target

BUILTIN = "builtin"
BUILTIN_BYTES = 4_000_000
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests"})
_REMEDY = "give files as `data: path/to/*.txt`, or `data: builtin`"
BLOCK = 2**20  # bytes that are read at a time
REMOTE_BLOCK = 2**23  # the same of a store, where each read takes a while
_STAMPS = ("size", "ETag", "etag", "mtime", "LastModified", "last_modified", "blob_id", "created")


class Open(Protocol):
    """Opens a file for reading; streamed: from its start to its end, without seeking."""

    def __call__(self, *, is_streamed: bool) -> BinaryIO:
        """Raises Refused, NotFound, ServiceUnreachable, as reading does."""


@dataclass(frozen=True)
class SourceFile:
    """A file that can be read; `stamp` changes when it does, as far as its store says."""

    name: str
    num_bytes: int | None
    stamp: str
    open: Open
    is_text: bool = False  # whatever its first bytes look like


def find_files(names: Sequence[str]) -> list[SourceFile]:
    """The files that are named, sorted by name, each once.

    Raises:
        Refused: a folder, a protocol that nothing here opens, or one that refuses us.
        NotFound: a name matches nothing, or a link to nothing.
        ServiceUnreachable: a store does not answer.
    """
    if list(names) == [BUILTIN]:
        return list(_builtin())
    found: dict[str, SourceFile] = {}
    for name in names:
        if "://" in name:
            found |= _remote(name)
        else:
            found |= {str(path): _local(path) for path in matching_files([name])}
    return [found[name] for name in sorted(found)]


# ------------------------------------------------------------------------------------ this machine


def _builtin() -> Iterator[SourceFile]:
    """Python's own source text: files of the standard library by path, without tests.

    It differs between versions of Python.
    """
    stdlib, left = Path(sysconfig.get_paths()["stdlib"]), BUILTIN_BYTES
    paths = (path.relative_to(stdlib) for path in stdlib.rglob("*.py"))
    ours = (path for path in paths if not _SKIPPED_FOLDERS.intersection(path.parts))
    for path in sorted(ours, key=lambda path: path.as_posix()):
        if left <= 0:
            return
        yield _local(stdlib / path, is_text=True)
        left -= (stdlib / path).stat().st_size


def _local(path: Path, *, is_text: bool = False) -> SourceFile:
    def opened(*, is_streamed: bool) -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            raise Refused(f"data: cannot read {path}: {error.strerror}; {_REMEDY}") from error

    about = path.stat()
    stamp = f"{about.st_size} {about.st_mtime_ns}"
    return SourceFile(str(path), about.st_size, stamp, opened, is_text)


def matching_files(patterns: Sequence[str]) -> list[Path]:
    """Files of this machine that the patterns name, sorted, each once; raises as `find_files`."""
    found: set[str] = set()
    for pattern in patterns:
        if os.path.isdir(pattern):
            found.update(_saved_dataset(pattern, lambda name: Path(name).read_bytes()))
            continue
        matched = _named(pattern)
        for name in matched:
            need_target(Path(name), "data")
        names = [name for name in matched if os.path.isfile(name)]
        if not names:
            raise NotFound(f"data: no file matches {pattern!r}; {_REMEDY}")
        found.update(names)
    return [Path(name) for name in sorted(found)]


def _named(pattern: str) -> list[str]:
    """What exists under its literal name is no pattern: a folder may be called `[work]`."""
    if not pattern:
        return []
    if os.path.isfile(pattern):
        return [pattern]
    folder = next((str(each) for each in Path(pattern).parents if os.path.isdir(each)), "")
    rest = os.path.relpath(pattern, folder)
    return glob.glob(os.path.join(glob.escape(folder), rest), recursive=True)


def _saved_dataset(folder: str, read: Callable[[str], bytes]) -> list[str]:
    """The Arrow files of a folder that `Dataset.save_to_disk` wrote.

    Raises:
        Refused: it is another folder, or holds several splits.
    """

    def said(file: str, get: Callable[[Any], Any]) -> Any:
        """What `get` finds in a file of the folder; None: there is none."""
        try:
            return get(json.loads(read(f"{folder}/{file}")))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise Malformed(f"data: {folder}/{file} is not what `save_to_disk` writes") from error

    if (split := said("dataset_dict.json", lambda found: found["splits"][0])) is not None:
        raise Refused(f"data: {folder} holds splits, name one of them: {folder}/{split}")
    names = said("state.json", lambda found: [each["filename"] for each in found["_data_files"]])
    if names is None:
        raise Refused(f"data: {folder} is a folder; write {folder}/*.txt")
    if not all(re.fullmatch(r"[\w-][\w.-]*\.arrow", str(name)) for name in names):
        raise Refused(f"data: {folder}/state.json names other files than Arrow files of the folder")
    return [f"{folder}/{name}" for name in names]


# -------------------------------------------------------------------------------------------- URLs


def _shown(text: str) -> str:
    """A URL, or what tells of one, without what may be secret in it."""
    hidden = r"//(?:[^/@\s]*|[^/@\s]*:[^@\s'\"]*)@"
    return re.sub(r"\?[^\s'\"]*", "", re.sub(hidden, "//", text))


def _remote(url: str) -> dict[str, SourceFile]:
    """The files of a URL, by their own URLs."""
    with _asking(url):
        system, path = _opened(url)
        is_page = url.startswith(("http:", "https:"))  # which may have a `*` in its query alone
        if "*" in path.partition("?")[0]:
            paths = system.glob(path)
        elif not is_page and system.isdir(path):
            paths = _saved_dataset(path, system.cat_file)
        else:
            paths = [path]
        if not paths:
            raise NotFound(f"data: no file matches {_shown(url)}")
        return {each: _file_of(system, each, is_page=is_page) for each in paths}


def _opened(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise Refused(
            f"data: reading {_shown(url)} needs fsspec: pip install 'tallystick[data]'"
        ) from error
    try:
        found: tuple[Any, str] = url_to_fs(url)
    except (ImportError, ValueError) as error:  # a protocol whose package is missing, or none
        raise Refused(f"data: {_shown(url)}: {_shown(str(error))}") from error
    return found


def _file_of(system: Any, path: str, *, is_page: bool) -> SourceFile:
    about = system.info(path)
    name = _shown(path if is_page else system.unstrip_protocol(path))
    stamp = " ".join(f"{key}={about[key]}" for key in _STAMPS if about.get(key) is not None)

    def opened(*, is_streamed: bool) -> BinaryIO:
        # Not every web server knows ranges, so what is read from its start is one request.
        block = 0 if is_page and is_streamed else REMOTE_BLOCK
        with _asking(path):
            raw = _RemoteFile(path, system.open(path, "rb", block_size=block))
        return io.BufferedReader(raw, buffer_size=BLOCK)

    return SourceFile(name, about.get("size"), stamp, opened)


class _RemoteFile(io.RawIOBase):
    """A file of `fsspec` whose failures are errors of ours."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        with _asking(self._url):
            return int(self._file.seek(offset, whence))

    def readinto(self, into: Any) -> int:
        with _asking(self._url):
            data = self._file.read(len(into))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn what a store of `fsspec` raises into errors of ours, which show nothing secret."""
    try:
        yield
    except TallystickError:
        raise
    except FileNotFoundError as error:
        raise NotFound(f"data: {_shown(url)} is not there, or does not answer") from error
    except PermissionError as error:
        raise Refused(
            f"data: {_shown(url)} may not be read with the credentials of this environment: "
            f"{_shown(str(error))}"
        ) from error
    except Exception as error:  # implementations of `fsspec` have no class in common
        why = f"{type(error).__name__}: {_shown(str(error))}"
        raise ServiceUnreachable(
            f"data: cannot read {_shown(url)} ({why}); the same command goes on where this ended"
        ) from error
