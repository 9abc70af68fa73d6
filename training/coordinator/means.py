"""Averaged chunks that the coordinator fetches for members that lack them, and keeps.

A mean is fetched once, whoever asks for it, from who signed it or from one other that says to hold
it, and checked against what was signed: digest, norm, number of elements. It stays in a SQLite file
until every member has applied its step, so a seal may name it although only one owner says to hold
it: who lacks it then is brought it after the seal. A member that never applies anything cannot fill
the disk: above `MOST_BYTES` nothing is kept, and a seal needs two owners again.

Invariants: what is given is what was signed, so a mean goes by the digest of its message, not of
its bytes, which another one may share; `MeansKept` is recorded only when the mean is on disk.
"""

import asyncio
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.terms.chunks import Chunk
from contracts.terms.errors import DeadlineExceeded, Misbehaved, Refused, Unavailable
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import AveragedChunk
from training.averaging.norms import need_norm
from training.averaging.slices import need_digest, need_elements
from training.coordinator.book import Book
from training.coordinator.ports import Clock
from training.swarm.events import MeansKept
from training.swarm.state import Averaging
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask

SHARE_OF_SIGNER, SHARE_OF_OTHER = 1 / 4, 1 / 8
"""Of the exchange timeout, for calls that fetch a mean."""
SHORTEST_FETCH = 1.0  # seconds
MOST_BYTES = 4 * 2**30


class Means:
    """What was fetched of the steps that somebody may still lack."""

    def __init__(
        self,
        folder: Path,
        book: Book,
        transport: Transport,
        elements: Mapping[Chunk, int],
        *,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self._book, self._transport, self._elements = book, transport, elements
        self._clock, self._tell_rarely = clock, Rarely(tell)
        self._files = MeansFile(folder / "means.sqlite")
        self._locks: defaultdict[Digest, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._checking = asyncio.Semaphore(1)  # megabytes of squares: one core is enough
        self._silent: set[tuple[StepNumber, Session]] = set()  # when asked for a mean of that step

    async def kept(self, mean: AveragedChunk) -> bytes | None:
        """The bytes of a mean that is here."""
        return await asyncio.to_thread(self._files.find, mean.digest())

    async def fetch(self, mean: AveragedChunk) -> bytes | None:
        """A mean of the step in work, kept from now on; None if nobody gives it."""
        async with self._locks[mean.digest()]:
            known = await self.kept(mean)
            data = known or await self._from_holders(mean)
            if data is not None and (known is None or not self._is_recorded(mean)):
                await self._keep(mean, data)
            return data

    async def drop(self, applied: StepNumber) -> None:
        """Forget means of steps that all members have applied."""
        self._silent = {each for each in self._silent if each[0] > applied}
        for digest in [name for name, lock in self._locks.items() if not lock.locked()]:
            del self._locks[digest]
        await asyncio.to_thread(self._files.drop, applied)

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    async def _keep(self, mean: AveragedChunk, data: bytes) -> None:
        try:
            await asyncio.to_thread(self._files.put, mean.step, mean.digest(), data)
        except Unavailable as error:
            self._tell_rarely("mean_not_kept", step=mean.step, reason=error.message)
            return
        if self.is_current(mean):  # else another one would count as kept
            name = mean.stage, mean.chunk
            self._book.record(MeansKept(StepNumber(mean.step), (name,), self._clock()))

    def is_current(self, mean: AveragedChunk) -> bool:
        """Whether it is what was signed last as this mean, of the step in work."""
        phase, name = self._book.state.phase, (mean.stage, mean.chunk)
        chunks = phase.chunks if isinstance(phase, Averaging) else {}
        return name in chunks and chunks[name][0] == mean

    def _is_recorded(self, mean: AveragedChunk) -> bool:
        phase = self._book.state.phase
        return isinstance(phase, Averaging) and (mean.stage, mean.chunk) in phase.kept

    async def _from_holders(self, mean: AveragedChunk) -> bytes | None:
        """From who signed it, else from another member that says it holds it.

        Who did not answer is not waited for again in this step, unless it has a new session.
        """
        request = calls.GetChunk(step=mean.step, stage=mean.stage, chunk=mean.chunk)
        for holder in self._holders(mean):
            session = self._transport.sessions.get(self._book.key_of(holder))
            if session is None or (StepNumber(mean.step), session) in self._silent:
                continue
            share = SHARE_OF_SIGNER if holder == mean.peer else SHARE_OF_OTHER
            span = self._book.state.terms.exchange_timeout / 1000 * share
            deadline = max(SHORTEST_FETCH, span)
            try:
                _, tensors = await ask(session, calls.GET_CHUNK, request, deadline=deadline)
                data = bytes(tensors[0]) if tensors else b""
                await self._check(mean, data)
            except (Unavailable, Refused, Misbehaved) as error:
                self._tell_rarely(
                    "call_failed",
                    step=self._book.state.step,
                    peer=holder,
                    duty="GetChunk",
                    code=error.code,
                    reason=error.message,
                )
                if isinstance(error, DeadlineExceeded):
                    self._silent.add((StepNumber(mean.step), session))
            else:
                return data
        return None

    async def _check(self, mean: AveragedChunk, data: bytes) -> None:
        codec = self._book.record_of_job.spec.rules.gradient_codec
        need_elements(data, self._elements[mean.stage, mean.chunk], codec)
        async with self._checking:
            await asyncio.to_thread(need_digest, data, mean.chunk_digest, codec)
            await asyncio.to_thread(need_norm, data, mean.norm_squared, codec)

    def _holders(self, mean: AveragedChunk) -> list[PeerId]:
        """Who signed it and one other: each of them may take its time to say nothing."""
        phase, members = self._book.state.phase, self._book.state.members
        held = phase.held if isinstance(phase, Averaging) else {}
        name = mean.stage, mean.chunk
        said = [peer for peer in sorted(held) if name in held[peer] and peer in members]
        others = [peer for peer in said if peer != mean.peer and members[peer].is_here]
        return [mean.peer, *others[:1]]


class MeansFile:
    """One table in a file, each mean under its digest; safe to use from several threads.

    A task that is cancelled leaves its statement running in its thread. Closing waits for it: a
    connection that is closed in the middle of a statement ends the process.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises Unavailable."""
        self._path, self._lock = path, threading.Lock()
        try:
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise Unavailable(f"cannot open {path}: {error}") from error
        self._run(
            "CREATE TABLE IF NOT EXISTS means (digest BLOB PRIMARY KEY, step INTEGER, data BLOB)"
        )

    def put(self, step: int, digest: Digest, data: bytes) -> None:
        """On disk when this returns; raises Unavailable."""
        ((size,),) = self._run("SELECT coalesce(sum(length(data)), 0) FROM means")
        if size + len(data) > MOST_BYTES:
            raise Unavailable(f"{self._path}: {size} bytes wait for members that are behind")
        self._run("INSERT OR REPLACE INTO means VALUES (?, ?, ?)", digest, step, data)

    def find(self, digest: Digest) -> bytes | None:
        """The bytes under a digest, if they are here; raises Unavailable."""
        rows = self._run("SELECT data FROM means WHERE digest = ?", digest)
        return rows[0][0] if rows else None

    def drop(self, step: int) -> None:
        """Forget what is of `step` and before; raises Unavailable."""
        self._run("DELETE FROM means WHERE step <= ?", step)

    def close(self) -> None:
        """Close the file; what is asked of it later raises Unavailable."""
        with self._lock:
            self._base.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any]]:
        try:
            with self._lock:
                return self._base.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
