"""What an auditor from outside needs of the network, and where its weights come from.

Weights cost it 4 bytes a parameter of traffic and of disk (docs/protocol.md 7). Invariants:
downloaded weights are used only after their root was computed and lies under the base that a sealed
claim names; one file a group stays, the last one.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.errors import Misbehaved, Refused, Unavailable
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import JobSpec, Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.changes import Changes
from training.telling import Tell, telling_about
from training.transport.dispatch import Dispatcher
from training.worker.download import take_file
from training.worker.engine import Engine
from training.worker.patience import Patience
from training.worker.peers import Peers
from training.worker.ports import HONEST, Arithmetic, Behaviour
from training.worker.run import Connection
from training.worker.sealed import SealedWork
from training.worker.shared_files import SharedFile
from verification.auditing.auditor import most_weight_bytes
from verification.auditing.following import Followed, FollowedJob, run_outside
from verification.auditing.program import Auditing
from verification.auditing.replays import Meter

DIAL = 10.0  # seconds


class OutsideHost:
    """Satisfies `Host` for an auditor without lease, state or stage."""

    def __init__(
        self,
        followed: Followed,
        folder: Path,
        engine: Engine,
        connection: Connection,
        arithmetic: Arithmetic,
        behaviour: Behaviour,
        tell: Tell,
    ) -> None:
        """Once the job is open."""
        record = followed.record
        self._followed, self._connection = followed, connection
        self._peers = Peers(connection.transport, record.spec, record.opening, tell)
        self._weights: dict[StageIndex, DownloadedWeights] = {}
        self.folder, self.engine, self.session = folder, engine, connection.session
        self.behaviour, self.tell = behaviour, tell
        self.sources = (partial(self._peers.fetch, patience=Patience()), self._found)
        self.strategy_for, self.rows = arithmetic.strategy_for, arithmetic.rows

    async def _found(self, digest: Digest, sort: Sort, _holders: Sequence[PeerId]) -> Buffer:
        """What the coordinator gives, which asks all that may have it."""
        return await self._peers.find(digest, sort)

    @property
    def record(self) -> JobRecord:
        """See `Host.record`."""
        return self._followed.record

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """See `Host.parties`."""
        return self._followed.parties

    @property
    def work(self) -> SealedWork:
        """See `Host.work`."""
        return self._followed.work

    @property
    def changes(self) -> Changes:
        """See `Host.changes`."""
        return self._followed.changes

    async def weights(self, claim: WorkClaim) -> Path:
        """See `Host.weights`."""
        group, spec = claim.group, self.record.spec
        if group not in self._weights:
            meter = Meter(self.engine)
            check = self.strategy_for(meter).need_weights
            self._weights[group] = DownloadedWeights(
                self._peers,
                group,
                self.folder / f"stage-{group}",
                check=lambda file, root: meter(partial(check, file, group, root)),
                most_bytes=most_weight_bytes(spec, group),
                tell=self.tell,
            )
        return await self._weights[group](claim)

    async def reach_coordinator(self) -> None:
        """See `Host.reach_coordinator`; asks who the members are: those of before may be gone."""
        key = self.record.opening.session_key
        session = self._connection.transport.sessions.get(key)
        if session is None or session.closed:
            if (hint := await self._connection.locate()) is None:
                raise Unavailable("the coordinator's address is not known")
            await self._connection.transport.dial(key, [hint], deadline=DIAL)
        await self._peers.refresh()

    async def hand_in(self, report: Signed[WorkClaim], leaf: Leaf) -> None:
        """See `Host.hand_in`."""
        await self._peers.report(report, (leaf,))


async def audit_outside(
    folder: Path,
    job: FollowedJob,
    connection: Connection,
    arithmetic_of: Callable[[JobSpec], Arithmetic],
    auditing: Auditing,
    tell: Tell,
    behaviour: Behaviour = HONEST,
) -> None:
    """Audit what a job draws for us until its last seal; start again where it was.

    Args:
        folder: Holds our reports and downloaded weights, made on first use.
        job: Whose history is followed.
        connection: Under the key that its list of outside auditors names.
        arithmetic_of: What we compute with.
        auditing: What is done about what is drawn for us.
        tell: The log.
        behaviour: What we say of what we did not see, if we lie.

    Raises:
        TallystickError: as `run_outside`.
    """
    engine = Engine()

    def host_of(followed: Followed) -> OutsideHost:
        arithmetic = arithmetic_of(followed.record.spec)
        return OutsideHost(followed, folder, engine, connection, arithmetic, behaviour, tell)

    await connection.transport.serve(Dispatcher())
    try:
        peer = connection.session.peer
        await run_outside(job, host_of, auditing, peer, tell, connection.pause)
    finally:
        await engine.close()


class DownloadedWeights:
    """Of one group."""

    def __init__(
        self,
        peers: Peers,
        group: StageIndex,
        folder: Path,
        *,
        check: Callable[[Path, Digest], Awaitable[None]],
        most_bytes: int,
        tell: Tell,
    ) -> None:
        """Those of one group.

        Args:
            peers: Whom to ask.
            group: Whose weights.
            folder: For this alone.
            check: Refuses a file of weights that do not lie under a root: raises WrongBytes.
            most_bytes: A longer file cannot be the weights.
            tell: The log.
        """
        self._peers, self._group, self._folder, self._check = peers, group, folder, check
        self._most_bytes, self._tell = most_bytes, tell

    async def __call__(self, claim: WorkClaim) -> Path:
        """See `Host.weights`."""
        path = self._folder / f"{claim.base.hex()}.weights"
        if path.exists():
            return path
        mates = self._peers.mates(self._group)
        others = tuple(peer for peer in mates if peer != claim.peer)
        try:
            return await self._from(others, claim, path)
        except (Misbehaved, Unavailable, Refused):
            if claim.peer not in mates:
                raise
        return await self._from((claim.peer,), claim, path)

    async def _from(self, mates: tuple[PeerId, ...], claim: WorkClaim, path: Path) -> Path:
        step = StepNumber(claim.round - 1)

        async def keep(file: Path) -> None:
            await self._check(file, claim.base)
            await asyncio.to_thread(self._keep, file, path)

        await take_file(
            SharedFile(self._peers, "weights", self._group, step, claim.base, mates),
            self._folder,
            keep,
            most_bytes=self._most_bytes,
            tell=telling_about(self._tell, step=claim.round, stage=self._group),
        )
        return path

    def _keep(self, file: Path, path: Path) -> None:
        try:
            for old in self._folder.glob("*.weights"):
                old.unlink(missing_ok=True)
            os.replace(file, path)
        except OSError as error:
            raise Unavailable(f"cannot keep {path}: {error.strerror}") from error
