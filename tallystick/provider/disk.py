"""Does the disk have room for a lease, and which folders may go when one is over?

The bound of a lease's folder follows from the signed job (`training.disk`). Beside it `RESERVE`
stays free: journals, transactions, and what a peer writes to leave in order. Without it the agent
stands back: its peers leave, its offer is withdrawn. A lease that asked for more than there is
makes it stand back too, until there is as much, or `PAUSE` is over: other jobs ask for less.

While a peer runs its folder is its own. Once its lease is over nobody fetches its tensors, parts,
weights or states any more (`BULK`): they go at once. Two things stay longer:
- the newest checkpoint until the market has the weights of all stages, or `KEEP_MODEL` has passed:
  it may be the only copy of what was paid for;
- journal, keys, beacons, evidence and the newest seal until neither stake nor pay of ours is in the
  job (`money`): until then a slash may be announced, and pay claimed. Then the folder goes, unless
  a bundle of it is still needed.
Shards of all jobs lie beside them (`blobs`) and go once nobody works: no lease asks for their room.
Safe to repeat; a kill in the middle leaves what the next look removes.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from contracts.terms.errors import NotFound, Refused, Unavailable
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.bodies.offers import LeaseView
from market.bodies.routes import GET_CHECKPOINTS, GET_JOB, GET_LEASE
from tallystick.provider.folder import is_settled
from tallystick.provider.slashes import bundles_in
from tallystick.sdk.client import MarketClient
from tallystick.sdk.watch import DONE_STATES
from training.worker.store import KINDS

# -------------------------------------------------------------------------------------------- room

RESERVE = 256 * 2**20
PAUSE = 600.0  # seconds

Free = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write under a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder, some of which may go meanwhile."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except FileNotFoundError:
                continue
    return total


class Room:
    """Of one provider's home."""

    def __init__(
        self,
        home: Path,
        *,
        free: Free = free_bytes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._free, self._monotonic = home, free, monotonic
        self._wanted, self._until = 0, 0.0

    def need(self, bound: int, *, held: int = 0) -> None:
        """Refuse a lease whose folder may take `bound` bytes, of which it holds `held` already.

        Raises:
            Refused: there is no room for it beside the reserve.
        """
        wanted = max(0, bound - held) + RESERVE
        free = self._free(self._home)
        if free < wanted:
            self._wanted, self._until = wanted, self._monotonic() + PAUSE
            raise Refused(
                f"{megabytes(free)} are free in {self._home}, the job may take {megabytes(bound)} "
                f"and {megabytes(RESERVE)} stay free beside it",
                wanted=wanted,
                free=free,
            )

    def lacks(self) -> str | None:
        """What it lacks to go on, for its owner; None: nothing."""
        free = self._free(self._home)
        if free < RESERVE:
            return (
                f"the disk is full: {megabytes(free)} are free in {self._home}, "
                f"{megabytes(RESERVE)} are needed"
            )
        if free < self._wanted and self._monotonic() < self._until:
            return (
                f"the disk has no room for the job that was matched: {megabytes(free)} are free "
                f"in {self._home}, {megabytes(self._wanted)} are needed"
            )
        return None


def megabytes(size: int) -> str:
    """A size, as people read it; rounded up."""
    return f"{-(-size // 2**20)} MB"


# ------------------------------------------------------------------------------- folders of leases

BULK = (*KINDS, "groups/*/weights", "groups/*/round", "download", "recording", "publishing")
CHECKPOINTS, SHARDS = "groups/*/checkpoints", "blobs"
LEASE_OVER = ("ended", "lapsed")
"""States of a job in which the market has all of its seals."""
KEEP_MODEL = timedelta(days=7)


@dataclass(frozen=True)
class Ended:
    """What is known about a lease's job, as far as its folder depends on it."""

    is_over: bool  # the lease; of an audit from outside the job
    has_weights: bool  # of all stages
    is_settled: bool  # see `note_settled`


class LeaseFolders:
    """Of one provider."""

    def __init__(self, client: MarketClient, home: Path) -> None:
        self._client, self._home = client, home

    async def clear(self, is_busy: Callable[[Path], bool]) -> None:
        """Remove what may go, of all folders in which no process works.

        Raises:
            Unavailable: the market does not answer, or the disk; what is removed is removed.
        """
        leases = _named(self._home / "leases")
        audits = _named(self._home / "audits")
        if not any(is_busy(folder) for folder in (*leases.values(), *audits.values())):
            _remove((self._home / SHARDS).glob("*"))
        for name, folder in leases.items():
            ended = await self._lease(Digest(name), folder)
            if not is_busy(folder):  # asked after the market: nobody has begun meanwhile
                remove(folder, ended)
        for name, folder in audits.items():
            ended = await self._audit(JobId(name), folder)
            if not is_busy(folder):
                remove(folder, ended)

    async def _lease(self, name: Digest, folder: Path) -> Ended:
        try:
            lease = await self._client.call(GET_LEASE, lease=name)
        except NotFound:  # a market that was set up anew, or another: nobody fetches anything here
            return Ended(True, has_weights=False, is_settled=is_settled(folder))
        is_over = lease.state in LEASE_OVER
        has_weights = is_over and await self._has_weights(lease)
        return Ended(is_over, has_weights, is_settled(folder))

    async def _has_weights(self, lease: LeaseView) -> bool:
        """Whether the market has all of the last step; what was published before does not do."""
        stages = expect(decode_signed(lease.spec), JobSpec).message.batch.stages
        last = (await self._client.call(GET_JOB, job=lease.job)).progress.step
        claims = (await self._client.call(GET_CHECKPOINTS, job=lease.job)).checkpoints
        here = {each.stage for each in claims if each.step == last and each.num_bytes is not None}
        return len(here) == stages

    async def _audit(self, job: JobId, folder: Path) -> Ended:
        try:
            is_over = (await self._client.call(GET_JOB, job=job)).state in DONE_STATES
        except NotFound:
            is_over = True
        return Ended(is_over, has_weights=True, is_settled=is_settled(folder))


def _named(parent: Path) -> dict[bytes, Path]:
    """The folders in `parent` by the bytes that name them; what is called otherwise is not ours."""
    found = {}
    for folder in sorted(parent.glob("*")):
        with contextlib.suppress(ValueError):
            found[bytes.fromhex(folder.name)] = folder
    return found


def remove(folder: Path, ended: Ended, *, now: float | None = None) -> None:
    """Remove what of a folder nobody may ask for any more.

    Args:
        folder: Of a lease, or of an audit; nobody works in it.
        ended: What the market says.
        now: Unix seconds; the machine's clock if absent.

    Raises:
        Unavailable: the disk refuses.
    """
    if ended.is_over:
        _remove(_gone(folder, ended, time.time() if now is None else now))


def _remove(paths: Iterable[Path]) -> None:
    try:
        for gone in paths:
            if gone.is_dir():
                shutil.rmtree(gone)
            else:
                gone.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot remove {error.filename}: {error.strerror}") from error


def _gone(folder: Path, ended: Ended, now: float) -> Iterator[Path]:
    found = sorted(folder.glob(f"{CHECKPOINTS}/*"), key=lambda path: path.name)
    newest = found[-1] if found else None
    may_be_asked = newest is not None and (
        not ended.has_weights and now - newest.stat().st_mtime < KEEP_MODEL.total_seconds()
    )
    if ended.is_settled and not may_be_asked and not bundles_in(folder):
        yield folder
        return
    yield from (each for name in BULK for each in folder.glob(name))
    yield from found[: -1 if may_be_asked else None]
