"""What a peer fetches from the market by hash, and what it leaves there when its job has ended.

Shards are kept on disk (`MarketBlobs`; synchronous, thread-safe). The peer's compute thread asks; a
market that does not answer is waited for, because the work that was begun must not be lost to a
blip.

The weights of its stage are for the poster (`MarketArtifacts`). Every member says which index of
parts they are; equal states make equal parts, so the poster sees who agrees. One of them uploads:
the first in peer order at once, the others only if no part has come for `TURN`, so that a peer that
died last does not cost the model. A member that cannot publish says why to the market, which tells
the poster. Weights are read from the checkpoint part by part: one part is in memory at a time.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx

from contracts.http_clients import by_proxy, client
from contracts.keys.wallet import Session
from contracts.terms import errors
from contracts.terms.digest import blob_digest
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StageIndex, StepNumber
from contracts.terms.parts import MAX_PART_BYTES, Parts
from market.bodies.base import API_PREFIX, MAX_BLOB_BYTES, MAX_FAILURE
from market.bodies.jobs import PostCheckpoint
from market.bodies.routes import POST_CHECKPOINT
from market.bodies.signing import checkpoint_digest
from tallystick.files import replace_file
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.parts import Stored, put_parts
from training.models.sources import FileSource, Source, parts_of
from training.models.weights import StoredWeights, tensors_in, weights_source
from training.stages.sealed_state import EXP_AVG, EXP_AVG_SQ, MOMENTUM
from training.telling import Tell
from training.worker.run import StateFile

_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 0.25


class MarketBlobs:
    """Satisfies `training.data.loading.BlobSource`."""

    def __init__(
        self, market: str, folder: Path, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._market = market
        self._http = client(
            market,
            base_url=market.rstrip("/") + API_PREFIX,
            timeout=30.0,
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def fetch(self, digest: Digest) -> bytes:
        """The blob of this name.

        Raises:
            NotFound: the market does not hold it.
            TooLarge: no shard has as many bytes; they are not read.
            WrongBytes: it answered with other bytes.
            ServiceUnreachable: no answer for five minutes.
        """
        path = self._folder / digest.hex()
        if path.exists() and blob_digest(data := path.read_bytes()) == digest:
            return data
        data = self._download(digest)
        if (actual := blob_digest(data)) != digest:
            raise errors.WrongBytes(f"blob {digest.hex()}", expected=digest, actual=actual)
        replace_file(path, data, durable=False)
        return data

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """Bytes [start, end) of a blob, unchecked and not kept; raises as `fetch`."""
        return self._download(digest, range(start, end))

    def _download(self, digest: Digest, part: range | None = None) -> bytes:
        ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._get(digest, part)
            except errors.ServiceUnreachable:
                if time.monotonic() > ends:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _get(self, digest: Digest, part: range | None) -> bytes:
        headers = {} if part is None else {"range": f"bytes={part.start}-{part.stop - 1}"}
        try:
            with self._http.stream("GET", f"/blobs/{digest.hex()}", headers=headers) as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    raise errors.NotFound(f"the market has no blob {digest.hex()}")
                if not answer.is_success:
                    raise errors.ServiceUnreachable(
                        f"blob {digest.hex()}: HTTP {answer.status_code}{by_proxy(self._market)}"
                    )
                data = _read(answer, digest)
                if part is None or answer.status_code == httpx.codes.PARTIAL_CONTENT:
                    return data
                return data[part.start : part.stop]  # of a proxy that knows no ranges
        except httpx.HTTPError as error:
            raise errors.ServiceUnreachable(
                f"blob {digest.hex()}: {error!r}{by_proxy(self._market)}"
            ) from error


def _read(answer: httpx.Response, digest: Digest) -> bytes:
    """The body; a poster may name any blob, and the market holds larger ones."""
    data = bytearray()
    for piece in answer.iter_bytes():
        data += piece
        if len(data) > MAX_BLOB_BYTES:
            raise errors.TooLarge(
                f"blob {digest.hex()} has more than {MAX_BLOB_BYTES} bytes", limit=MAX_BLOB_BYTES
            )
    return bytes(data)


# --------------------------------------------------------------------------- what it leaves behind

TURN, POLL = 10.0, 0.5  # seconds
PATIENCE = timedelta(seconds=30)
"""With a market that takes no part, before the poster is told of it; it is tried on."""


@dataclass(frozen=True)
class _Stage:
    """What is said, and uploaded."""

    stage: StageIndex
    step: StepNumber
    file: Source
    index: Parts


class MarketArtifacts:
    """Satisfies the worker's port `Artifacts` with the market's blobs."""

    def __init__(
        self,
        client: MarketClient,
        job: JobId,
        session: Session,
        tell: Tell,
        *,
        stored: Stored = lambda: None,
        part_bytes: int = MAX_PART_BYTES,
        patience: timedelta = PATIENCE,
    ) -> None:
        """`stored` is called as the upload goes on."""
        self._client, self._job, self._session = client, job, session
        self._tell = tell
        self._part_bytes, self._patience, self._stored = part_bytes, patience, stored

    async def publish(
        self, stage: StageIndex, step: StepNumber, checkpoint: Path, *, turn: int
    ) -> None:
        """Claim the weights in `checkpoint`, and upload them when it is our turn.

        Args:
            stage: Ours.
            step: The last one that the checkpoint holds.
            checkpoint: A file of `training.strategies.port.State`.
            turn: Members of the stage that come before us.

        Raises:
            Malformed: it is no checkpoint.
            Refused: the market does not take the claim, or a part. The poster was told, if the
                market listens.
        """
        try:
            file = weights_of(checkpoint)
            index = await asyncio.to_thread(parts_of, file, part_bytes=self._part_bytes)
        except errors.Malformed as error:
            await self._fail(stage, step, ZERO_DIGEST, error)
            raise
        ours = _Stage(stage, step, file, index)
        wanted = await self._claim(ours)
        if wanted and turn:
            await self._wait(ours, turn * TURN)
            wanted = await self._claim(ours)
        if wanted:
            await self._upload(ours)
            await self._claim(ours)  # the market looks: now all of it is there
            self._tell("weights_uploaded", step=step, bytes=index.num_bytes)

    async def _wait(self, ours: _Stage, span: float) -> None:
        """Until no part has come for `span` seconds, or all have."""
        names, left = [*ours.index.parts, ours.index.digest()], round(span / POLL)
        while left and names:
            await asyncio.sleep(POLL)
            left -= 1
            while names and await self._has(names[0]):
                del names[0]
                left = round(span / POLL)

    async def _has(self, name: Digest) -> bool:
        try:
            return await self._client.has_blob(name)
        except errors.Unavailable:
            return False

    async def _upload(self, ours: _Stage) -> None:
        """All parts that the market lacks; for as long as it takes, while it may still work."""
        name = ours.index.digest()

        async def upload() -> None:
            await put_parts(
                self._client, ours.file, ours.index, by=self._session, stored=self._stored
            )

        try:
            try:
                await retrying(upload, patience=self._patience)
            except errors.Unavailable as error:
                await self._fail(ours.stage, ours.step, name, error)
                await retrying(upload)
        except (errors.Refused, errors.Misbehaved) as error:
            await self._fail(ours.stage, ours.step, name, error)
            raise

    async def _claim(self, ours: _Stage) -> bool:
        """Say what we hold; whether the market lacks any of it."""
        claim = self._signed(ours.stage, ours.step, ours.index.digest(), "")
        stored = await retrying(lambda: self._client.call(POST_CHECKPOINT, claim, job=self._job))
        return stored.wanted

    async def _fail(
        self, stage: StageIndex, step: StepNumber, name: Digest, error: errors.TallystickError
    ) -> None:
        """Tell the poster; a market that does not listen is left alone."""
        self._tell("weights_not_published", step=step, code=error.code, reason=error.message)
        claim = self._signed(stage, step, name, _printable(error.message))
        try:
            await retrying(
                lambda: self._client.call(POST_CHECKPOINT, claim, job=self._job),
                patience=self._patience,
            )
        except (errors.Unavailable, errors.Refused) as silent:
            self._tell("failure_not_told", step=step, code=silent.code, reason=silent.message)

    def _signed(
        self, stage: StageIndex, step: StepNumber, name: Digest, failure: str
    ) -> PostCheckpoint:
        signed = checkpoint_digest(self._job, stage, step, name, failure)
        return PostCheckpoint(
            stage=stage,
            step=step,
            blob=name,
            failure=failure,
            session_key=self._session.key,
            signature=self._session.private_key.sign(signed),
        )


class Midway:
    """Publishes checkpoints of a job that goes on, one at a time; the newest one takes the place of
    one that still waits. Whatever goes wrong is told, and nothing waits for it."""

    def __init__(self, folder: Path, artifacts: MarketArtifacts, tell: Tell) -> None:
        """`folder` is that of the lease, on the disk of its checkpoints."""
        self._file, self._artifacts, self._tell = folder / "publishing", artifacts, tell
        self._newest = asyncio.Queue[StateFile](maxsize=1)

    def take(self, state: StateFile) -> None:
        """Publish this one next."""
        if self._newest.full():
            self._tell("publication_skipped", step=self._newest.get_nowait().step)
        self._newest.put_nowait(state)

    async def run(self) -> None:
        """Publish what was taken, until cancelled."""
        while True:
            state = await self._newest.get()
            try:
                self._file.unlink(missing_ok=True)
                os.link(state.checkpoint, self._file)  # the worker drops its own in a while
                self._tell("publishing", step=state.step)
                await self._artifacts.publish(state.stage, state.step, self._file, turn=state.turn)
            except (errors.TallystickError, OSError) as error:
                self._tell("publication_failed", step=state.step, reason=str(error))
            finally:
                self._file.unlink(missing_ok=True)


def _printable(reason: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in reason)[:MAX_FAILURE] or "no reason given"


def weights_of(checkpoint: Path) -> Source:
    """The weights in a stage's checkpoint as the file that all of its members make.

    Raises:
        Malformed: it is no safetensors file, or cannot be read.
    """
    tensors = tensors_in(FileSource(checkpoint), what=str(checkpoint))
    ours = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith((EXP_AVG, EXP_AVG_SQ, MOMENTUM))
    }
    return weights_source(StoredWeights(ours))
