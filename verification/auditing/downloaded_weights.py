"""What an outside auditor replays on: the weights of a stage, downloaded from its members.

Invariants: weights are used only after their root was computed and lies under the state root that
the caller has from a GradCommit; one file stays, the last one. It costs 4 bytes a parameter of
traffic and of disk (docs/protocol.md 7).
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from contracts.terms.errors import Misbehaved, NotFound, Refused, TallystickError, Unavailable
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from training.telling import Tell, telling_about
from training.transport.calls import WeightsView
from training.worker.download import Download, holders_of
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import Replayer
from training.worker.shared_files import WeightsFile
from verification.auditing.replays import run_when_idle


class DownloadedWeights:
    """Satisfies `replays.WeightsOf` for one stage."""

    def __init__(
        self,
        peers: Peers,
        stage: StageIndex,
        folder: Path,
        *,
        engine: Engine,
        replayer: Replayer,
        most_bytes: int,
        tell: Tell,
        doer: Callable[[], PeerId | None] = lambda: None,
    ) -> None:
        """`folder` is for this alone; a file of more than `most_bytes` cannot be the weights.

        `doer`: whose work they are for now; it gains by our waiting, so it is asked last.
        """
        self._peers, self._stage, self._folder = peers, stage, folder
        self._engine, self._replayer = engine, replayer
        self._most_bytes, self._tell, self._doer = most_bytes, tell, doer

    async def __call__(self, step: StepNumber, state_root: Digest) -> Path:
        """File of the weights that `step` was computed on.

        Raises:
            NotFound: no member has them any more. Unavailable: no member who is reached, or the
                disk is full. Misbehaved: what all who are reached offer is of another state.
        """
        path = self._folder / f"{step:08d}-{state_root.hex()}.weights"
        if path.exists():
            return path
        mates, doer = self._peers.mates(self._stage), self._doer()
        others = tuple(peer for peer in mates if peer != doer)
        try:
            return await self._from(others, step, state_root, path)
        except (Misbehaved, Unavailable, Refused):
            if doer is None or doer not in mates:
                raise
        return await self._from((doer,), step, state_root, path)

    async def _from(
        self, mates: tuple[PeerId, ...], step: StepNumber, state_root: Digest, path: Path
    ) -> Path:
        wanted = WeightsFile(self._peers, self._stage, StepNumber(step - 1), state_root, mates)
        error: TallystickError = NotFound(f"no member has the {wanted.name}")
        for view, holders in await holders_of(wanted, self._most_bytes):
            # All together, then each alone: one who lies then spoils his own file only.
            for group in (holders, *([holder] for holder in holders if len(holders) > 1)):
                try:
                    await self._download(wanted, view, group, path)
                    return path
                except (Misbehaved, Unavailable, Refused) as failure:
                    reason = {"code": failure.code, "reason": failure.message}
                    self._tell("weights_not_loaded", step=step, stage=self._stage, **reason)
                    error = failure
        raise error

    async def _download(
        self, wanted: WeightsFile, view: WeightsView, holders: list[PeerId], path: Path
    ) -> None:
        folder = self._folder / view.digest.hex()
        tell = telling_about(self._tell, step=wanted.step, stage=self._stage)
        file = await Download(wanted, view, folder, tell).file(holders)
        try:
            await run_when_idle(
                self._engine, lambda: self._replayer.need_weights(file, wanted.state_root)
            )
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
