"""Files that every member of a group has alike: how we serve ours, and take those of others.

Invariants of what is served: a file is read once for all who ask for its digest; of a file that
goes meanwhile the answer is that it is not here. A file may be larger than the memory that is left,
so it is read in pieces of `RANGE` bytes at most.

A group's checkpoint or weights come from several members at once, in ranges, whoever is free.
Invariants: equal states give equal files, so holders whose digests agree serve one file; what is
returned has the digest that its holders stated; ranges that arrived stay on disk, so a killed
newcomer goes on where it was; a range that one holder does not serve is asked of the others.
Whether the state is the right one is for its root to say, against a seal.
"""

import asyncio
import os
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.terms.digest import BlobHasher
from contracts.terms.errors import (
    Malformed,
    Misbehaved,
    NotFound,
    Refused,
    TallystickError,
    Unavailable,
    WrongBytes,
)
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from training.telling import Tell
from training.transport import calls
from training.transport.calls import FileView
from training.transport.port import MIB
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.store import write_whole

RANGE = 8 * MIB


class ServedFiles:
    """Remembers the digests of the `most` files that were asked for last."""

    def __init__(self, engine: Engine, *, most: int = 1) -> None:
        self._engine, self._most = engine, most
        self._known: OrderedDict[Path, tuple[int, FileView]] = OrderedDict()
        self._viewing = asyncio.Lock()

    async def view(self, path: Path) -> FileView:
        """Digest and size of a file; raises NotFound."""
        async with self._viewing:  # read once, for all who ask at the same time
            written = _stat(path).st_mtime_ns
            if path not in self._known or self._known[path][0] != written:
                self._known[path] = written, await self._engine.run_io(lambda: _view_of(path))
            self._known.move_to_end(path)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[path][1]

    async def range(self, path: Path, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Malformed."""
        size = _stat(path).st_size
        if not 0 <= start < end <= min(size, start + RANGE):
            raise Malformed(f"bytes {start} to {end} of {size}, {RANGE} at once")
        return await self._engine.run_io(lambda: _read_range(path, start, end))


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:  # dropped for a newer one at this moment
        raise NotFound(f"{path.name} is gone") from error


def _view_of(path: Path) -> FileView:
    hasher, size = BlobHasher(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(RANGE):
                hasher.update(piece)
                size += len(piece)
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error
    return FileView(digest=hasher.digest(), num_bytes=size, state_root=ZERO_DIGEST)


def _read_range(path: Path, start: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error


_VIEWS = {"checkpoint": calls.GET_STATE, "weights": calls.GET_WEIGHTS}
_RANGES = {"checkpoint": calls.GET_STATE_RANGE, "weights": calls.GET_WEIGHTS_RANGE}


@dataclass(frozen=True)
class SharedFile:
    """The checkpoint of a group after a round, or the weights that are a part of that state."""

    peers: Peers
    what: Literal["checkpoint", "weights"]
    group: StageIndex
    round: StepNumber
    state_root: Digest = ZERO_DIGEST  # under which weights are to lie
    holders: tuple[PeerId, ...] | None = None  # who is asked; None: all other members of the group

    @property
    def name(self) -> str:
        """For a reader."""
        return f"{self.what} of round {self.round}"

    def mates(self) -> list[PeerId]:
        """Who is asked."""
        return self.peers.mates(self.group) if self.holders is None else list(self.holders)

    async def view(self, peer: PeerId) -> calls.FileView:
        """What a member has; raises NotFound, Unavailable, WrongBytes: it is of another state."""
        request = calls.GetFile(job=self.peers.job, group=self.group, round=self.round)
        view = await self.peers.view(peer, _VIEWS[self.what], request)
        if view.state_root != self.state_root:
            wanted, said = self.state_root.hex(), view.state_root.hex()
            raise WrongBytes(f"{self.name} of another state", expected=wanted, actual=said)
        return view

    async def range(self, peer: PeerId, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Unavailable."""
        request = calls.GetFileRange(
            job=self.peers.job, group=self.group, round=self.round, start=start, end=end
        )
        return await self.peers.range(peer, _RANGES[self.what], request, end - start)


async def holders_of(wanted: SharedFile, most_bytes: int) -> list[tuple[FileView, list[PeerId]]]:
    """Files that members have, those of most holders first.

    One of more than `most_bytes` cannot be the state, and is as none.

    Raises:
        NotFound: no member that is reached has one, and all are. Unavailable: some are not.
    """
    mates = wanted.mates()
    answers = await asyncio.gather(*map(wanted.view, mates), return_exceptions=True)
    found: dict[tuple[bytes, int], tuple[FileView, list[PeerId]]] = {}
    unreached = False
    for peer, answer in zip(mates, answers, strict=True):
        if isinstance(answer, TallystickError):
            unreached |= isinstance(answer, Unavailable)
        elif isinstance(answer, BaseException):
            raise answer
        elif answer.num_bytes <= most_bytes:
            key = (answer.digest, answer.num_bytes)
            found.setdefault(key, (answer, []))[1].append(peer)
    if not found and (unreached or not mates):
        raise Unavailable(f"no member with a {wanted.name} is reached")
    if not found:
        raise NotFound(f"no member has a {wanted.name}")
    return sorted(found.values(), key=lambda each: (-len(each[1]), each[0].digest))


async def take_file(
    wanted: SharedFile,
    folder: Path,
    take: Callable[[Path], Awaitable[None]],
    *,
    most_bytes: int,
    tell: Tell,
) -> None:
    """Download a file, and have it taken by who says whether it is the right one.

    Raises:
        NotFound: nobody has it. Unavailable: nobody who is reached, or the disk is full.
        Misbehaved: what is offered was not taken.
    """
    error: Misbehaved | Unavailable | Refused | None = None
    for view, holders in await holders_of(wanted, most_bytes):
        # All together, then each alone: one who lies then spoils his own file only.
        for some in (holders, *([holder] for holder in holders if len(holders) > 1)):
            own = folder / f"{wanted.round:08d}-{view.digest.hex()}"
            try:
                file = await Download(wanted, view, own, tell).file(some)
                try:
                    await take(file)
                finally:
                    await asyncio.to_thread(shutil.rmtree, own, ignore_errors=True)
                return
            except (Misbehaved, Unavailable, Refused) as failure:
                tell("file_not_taken", name=wanted.name, code=failure.code, reason=failure.message)
                error = failure
    assert error is not None  # there was a holder
    raise error if not isinstance(error, Refused) else Unavailable(error.message)


class Download:
    """One file from its holders."""

    def __init__(
        self,
        wanted: SharedFile,
        view: FileView,
        folder: Path,
        tell: Tell,
        *,
        range_bytes: int = RANGE,
    ) -> None:
        """`folder` is for this file alone: what is in it when this begins is part of it.

        `tell` says which group and round it is about.
        """
        self._wanted, self._view = wanted, view
        self._folder, self._tell, self._range = folder, tell, range_bytes

    async def file(self, holders: Sequence[PeerId]) -> Path:
        """The whole file.

        Raises:
            Unavailable: no holder serves all that is missing, or the disk is full.
            WrongBytes: together they served another file; it is dropped.
        """
        starts = range(0, self._view.num_bytes, self._range)
        missing = [start for start in starts if not self._path(start).exists()]
        while missing and holders:
            missing, holders = await self._round(missing, holders)
        if missing:
            raise Unavailable(f"no holder serves {len(missing)} ranges of a {self._wanted.name}")
        return await asyncio.get_running_loop().run_in_executor(None, self._joined, starts)

    async def _round(
        self, missing: list[int], holders: Sequence[PeerId]
    ) -> tuple[list[int], list[PeerId]]:
        """Ranges that are still missing, and holders that have served all they were asked for."""
        queue, good = list(reversed(missing)), list(holders)

        async def serve(peer: PeerId) -> None:
            while queue:
                start = queue.pop()
                try:
                    await self._fetch(peer, start)
                except TallystickError as error:  # the others get this range
                    queue.append(start)
                    good.remove(peer)
                    self._tell(
                        "range_not_fetched",
                        peer=peer,
                        code=error.code,
                        reason=error.message,
                    )
                    return

        await asyncio.gather(*(serve(peer) for peer in holders))
        return queue, good

    async def _fetch(self, peer: PeerId, start: int) -> None:
        end = min(start + self._range, self._view.num_bytes)
        data = await self._wanted.range(peer, start, end)
        await asyncio.to_thread(write_whole, self._path(start), data)

    def _joined(self, starts: Sequence[int]) -> Path:
        """All ranges in one file, if they are what was stated."""
        path, hasher = self._folder / "whole", BlobHasher()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # there may be no range
            with path.open("wb") as file:
                for start in starts:
                    piece = self._path(start).read_bytes()
                    hasher.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}") from error
        if hasher.digest() != self._view.digest:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise WrongBytes(f"ranges of a {self._wanted.name} do not fit together")
        return path

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:016d}.part"
