"""The agent reads a job's beacons from the chain, and its peer reads them from a file.

The peer has no web3. The agent asks SealAnchor for the anchorer's anchor chain and the market for
the batches, compares them (`verification.draws.anchor_chains`) and appends each beacon to
`beacons.v2` in the lease's folder, on disk before anybody uses it. A sighting counts when its block
is confirmed, is old enough to survive a kill of an embedded chain, and is still there; it was made
at the head, because a node that was restarted knows the state of its head only.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.chain.blocks import Block
from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts
from contracts.chain.wrappers.seals import Seals
from contracts.governance.anchor_chain import AnchoredBatch
from contracts.terms import errors
from contracts.terms.beacons import BEACON_BYTES, Beacon, decode_beacon
from contracts.terms.ids import Address, JobId, StepNumber
from contracts.terms.messages import JobOpening
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from market.bodies.jobs import JobView
from market.bodies.routes import GET_JOB
from tallystick.sdk.client import MarketClient
from tallystick.sdk.orders import signed_spec
from verification.audit.collecting import read_anchor_chain
from verification.draws.anchor_chains import FollowedAnchorChain, Sighting

SETTLING_SECONDS = 2.0
"""Age at which a block of an embedded chain is in its state file for certain."""
MAX_SIGHTINGS = 64
"""Sightings that wait for the market; the oldest give way."""
UNSERVED_BLOCKS = 8_191
"""Blocks for which nobody showed us a list until we give it up: as long as a block's hash lasts."""


class BeaconFile:
    """Beacons of one job in the order in which they came; one process appends, others read.

    Raises:
        Malformed: the file holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "beacons.v2"
        self._offset = 0
        self._known: dict[StepNumber, Beacon] = {}

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `contracts.terms.beacons.Beacons`."""
        if step not in self._known:
            self._read()
        return self._known.get(step)

    def append(self, beacons: tuple[Beacon, ...]) -> None:
        """Store beacons that are new; on disk when this returns.

        Raises:
            ChainForgot: one differs from what was stored; the chain went back too far.
            Unavailable: the disk is full or cannot be written.
        """
        self._read()
        new = [beacon for beacon in beacons if self._known.get(beacon.step) != beacon]
        if not new:
            return
        if changed := next((beacon.step for beacon in new if beacon.step in self._known), None):
            raise errors.ChainForgot(
                f"the beacon of step {changed} is another one now", step=changed
            )
        try:
            with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                file.truncate(self._offset)  # a kill may have left a part of a beacon
                file.seek(self._offset)
                file.write(b"".join(beacon.encoded() for beacon in new))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise errors.Unavailable(f"{self._path} cannot be written: {error.strerror}") from error

    def _read(self) -> None:
        """Read what was appended; a part of a beacon is still being written."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        for start in range(0, len(data) - BEACON_BYTES + 1, BEACON_BYTES):
            beacon = decode_beacon(data[start : start + BEACON_BYTES])
            if self._known.setdefault(beacon.step, beacon) != beacon:
                raise errors.Malformed(f"{self._path}: two beacons of step {beacon.step}")
            self._offset += BEACON_BYTES


Batches = Callable[[Address, Block], Awaitable[Sequence[AnchoredBatch]]]
"""All batches up to a block, from the very first one on, by the chain's own events."""


@dataclass(frozen=True)
class Counts:
    """When a block counts."""

    confirmations: int  # 1: the block itself
    settling_seconds: float


@dataclass(frozen=True)
class _Seen:
    block: Block
    sighting: Sighting


class BeaconWatch:
    """Follows the anchor chain of one job and appends its beacons to a file."""

    def __init__(
        self,
        opening: JobOpening,
        file: BeaconFile,
        *,
        seals: Seals,
        batches: Batches,
        blocks: ChainConnection,
        market: MarketClient,
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self._job, self._anchorer, self._file = opening.job, opening.anchorer, file
        self._seals, self._batches, self._blocks, self._market = seals, batches, blocks, market
        self._counts, self._clock = counts, clock
        self._anchor_chain = FollowedAnchorChain(opening.job, opening.opening_block)
        self._head: Block | None = None  # as we saw it last
        self._seen: list[_Seen] = []
        self._unsaved: tuple[Beacon, ...] = ()
        self._missing: tuple[int | None, int] | None = None  # a batch, and the head since when

    async def look(self) -> tuple[Beacon, ...]:
        """Look once at chain and market; returns the beacons that are new. Safe to repeat.

        Raises:
            Unavailable: chain or market do not answer now.
            AuditMismatch, Equivocation: the market's list is not the chain's; nothing of it counts.
        """
        head = await self._blocks.head()
        await self._sight(head)
        while self._seen and self._is_due(self._seen[0].block, head):
            if await self._is_gone(self._seen[0].block):
                self._head = None  # the same may be said in another block: look again
            elif (beacons := await self._confirm(self._seen[0].sighting, head)) is None:
                break  # the market has not come as far
            else:
                self._unsaved += beacons
            del self._seen[0]
        self._file.append(self._unsaved)
        found, self._unsaved = self._unsaved, ()
        return found

    async def _sight(self, head: Block) -> None:
        """Note what SealAnchor says at the head, if that is new."""
        if head == self._head:
            return
        anchor_chain = await self._seals.anchor_chain(self._anchorer, head)
        pending = await self._seals.pending_block(self._anchorer, head)
        self._head = head
        sighting = Sighting(anchor_chain.hash, anchor_chain.count, is_pending=pending != 0)
        if not self._seen or self._seen[-1].sighting != sighting:
            self._seen.append(_Seen(head, sighting))
            del self._seen[:-MAX_SIGHTINGS]

    def _is_due(self, block: Block, head: Block) -> bool:
        """Whether what was said at the end of `block` counts, if it is still there."""
        if head.number < block.number:
            return True  # it is not
        confirmed = head.number - block.number >= self._counts.confirmations - 1
        settling, age = self._counts.settling_seconds, self._clock() - block.timestamp
        return confirmed and (not settling or age >= settling)

    async def _is_gone(self, block: Block) -> bool:
        try:
            return (await self._blocks.block(block.number)).hash != block.hash
        except errors.ChainForgot:
            return True

    async def _confirm(self, sighting: Sighting, head: Block) -> tuple[Beacon, ...] | None:
        """Ask the market for batches until the sighting is confirmed or there are no more."""
        try:
            while (beacons := self._anchor_chain.confirm(sighting)) is None:
                if not (await self._ask(head) or await self._give_up(head)):
                    return None
        except errors.AuditMismatch:
            self._anchor_chain.forget()  # it may have been a block that the chain forgot
            raise
        return beacons

    async def _ask(self, head: Block) -> bool:
        """Ask the market for the next batches; whether it says anything new."""
        wanted = self._anchor_chain.wanted
        if self._missing is None or self._missing[0] != wanted:
            self._missing = (wanted, head.number)
        try:
            return self._anchor_chain.take(await self._market.anchor_chain(self._job, first=wanted))
        except (errors.Unavailable, errors.NotFound):
            if not self._is_overdue(head):
                raise
            return False

    async def _give_up(self, head: Block) -> bool:
        """Take the next batch as one whose list nobody serves, if we have missed it so long."""
        if not self._is_overdue(head):
            return False
        return self._anchor_chain.give_up(await self._batches(self._anchorer, head))

    def _is_overdue(self, head: Block) -> bool:
        return self._missing is not None and head.number - self._missing[1] >= UNSERVED_BLOCKS


def batches_of(contracts: Contracts) -> Batches:
    """The batches that these contracts were sent."""
    chain, where = contracts.chain, contracts.deployment
    return lambda anchorer, at: read_anchor_chain(
        chain, where.seals, anchorer, first_block=where.block, last_block=at.number
    )


class BeaconWatches:
    """The beacons of all jobs that one agent has to do with, each in its folder."""

    def __init__(
        self,
        client: MarketClient,
        contracts: Contracts,
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._contracts = client, contracts
        self._counts, self._clock = counts, clock
        self._jobs: dict[Path, JobId] = {}
        self._watches: dict[Path, BeaconWatch] = {}

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where beacons are written."""
        return tuple(self._jobs)

    def follow(self, folder: Path, job: JobId) -> None:
        """Write the beacons of `job` to `folder` from now on; nothing if nobody checks it."""
        self._jobs[folder] = job

    def forget(self, folder: Path) -> None:
        """Write no more to `folder`; what is there stays."""
        self._jobs.pop(folder, None)
        self._watches.pop(folder, None)

    async def look(self, folder: Path) -> tuple[Beacon, ...]:
        """Look once for new beacons; none before the job is opened.

        Raises:
            Unavailable: try again. Refused: the market answers with what was not signed.
            AuditMismatch, Equivocation: see `BeaconWatch.look`.
        """
        if folder not in self._watches and folder in self._jobs:
            await self._begin(folder, self._jobs[folder])
        watch = self._watches.get(folder)
        return await watch.look() if watch is not None else ()

    async def _begin(self, folder: Path, job: JobId) -> None:
        view = await self._client.call(GET_JOB, job=job)
        if not view.opening:
            return
        opening = checked_opening(view, job, self._contracts.deployment.domain)
        if opening is None:
            self.forget(folder)
        elif folder in self._jobs:
            self._watches[folder] = BeaconWatch(
                opening,
                BeaconFile(folder),
                seals=self._contracts.seals,
                batches=batches_of(self._contracts),
                blocks=self._contracts.chain,
                market=self._client,
                counts=self._counts,
                clock=self._clock,
            )


def checked_opening(view: JobView, job: JobId, domain: Domain) -> JobOpening | None:
    """The opening of a job that is checked, None for another; both signatures hold.

    Raises:
        BadSignature: the market answers with another job, or with what was not signed.
    """
    spec = signed_spec(view.signed, job)
    verify_wallet(spec, spec.message.poster, domain)
    opening = expect(decode_signed(view.opening or b""), JobOpening)
    verify_wallet(opening, spec.message.coordinator, domain)
    if opening.message.job != job:
        raise errors.BadSignature(f"the market shows another opening than that of {job.hex()}")
    return opening.message if spec.message.rules.audit is not None else None
