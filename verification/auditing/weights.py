"""Weights of others' bases, for an auditor that has not got them.

They cost 4 bytes a parameter of traffic and of disk (docs/protocol.md 7). Invariants: downloaded
weights are used only after their root was computed and lies under the base that a sealed claim
names; one file stays, the last one.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from contracts.terms.errors import Misbehaved, NotFound, Refused, TallystickError, Unavailable
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.work import WorkClaim
from training.telling import Tell, telling_about
from training.transport.calls import WeightsView
from training.worker.download import Download, holders_of
from training.worker.peers import Peers
from training.worker.shared_files import WeightsFile


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
        wanted = WeightsFile(self._peers, self._group, step, claim.base, mates)
        error: TallystickError = NotFound(f"no member has the {wanted.name}")
        for view, holders in await holders_of(wanted, self._most_bytes):
            # All together, then each alone: one who lies then spoils his own file only.
            for group in (holders, *([holder] for holder in holders if len(holders) > 1)):
                try:
                    await self._download(wanted, view, group, path)
                    return path
                except (Misbehaved, Unavailable, Refused) as failure:
                    reason = {"code": failure.code, "reason": failure.message}
                    self._tell("weights_not_loaded", step=claim.round, stage=self._group, **reason)
                    error = failure
        raise error

    async def _download(
        self, wanted: WeightsFile, view: WeightsView, holders: list[PeerId], path: Path
    ) -> None:
        folder = self._folder / view.digest.hex()
        tell = telling_about(self._tell, step=wanted.round, stage=self._group)
        file = await Download(wanted, view, folder, tell).file(holders)
        try:
            await self._check(file, wanted.state_root)
            await asyncio.to_thread(self._keep, file, path)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _keep(self, file: Path, path: Path) -> None:
        try:
            for old in self._folder.glob("*.weights"):
                old.unlink(missing_ok=True)
            os.replace(file, path)
        except OSError as error:
            raise Unavailable(f"cannot keep {path}: {error.strerror}") from error
