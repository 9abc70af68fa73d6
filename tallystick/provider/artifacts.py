"""What a peer leaves behind when its job has ended: the weights of its stage, for the poster.

Every member says which blob they are; equal states make equal blobs, so the poster sees who agrees.
One of them uploads it: the first in peer order at once, the others only if nobody before them did
within `TURN`, so that a peer that died last does not cost the model.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from contracts.keys.wallet import Session
from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, Unavailable
from contracts.terms.ids import Digest, JobId, StageIndex, StepNumber
from market.api.schemas import MAX_BLOB_BYTES, PostCheckpoint, checkpoint_digest
from tallystick.sdk.client import MarketClient, retrying
from training.models.weights import encode_weights, tensors_in
from training.stages.stage import EXP_AVG, EXP_AVG_SQ
from training.telling import Tell

TURN, POLL = 10.0, 0.5  # seconds

Pause = Callable[[float], Awaitable[None]]


class MarketArtifacts:
    """Satisfies the worker's port `Artifacts` with the market's blobs."""

    def __init__(
        self,
        client: MarketClient,
        job: JobId,
        session: Session,
        tell: Tell,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._client, self._job, self._session = client, job, session
        self._tell, self._pause = tell, pause

    async def publish(
        self, stage: StageIndex, step: StepNumber, checkpoint: Path, *, turn: int
    ) -> None:
        """Claim the weights in `checkpoint`, and upload them when it is our turn.

        Args:
            stage: Ours.
            step: The last one that the checkpoint holds.
            checkpoint: A file of `training.stages.checkpoint`.
            turn: Members of the stage that come before us.

        Raises:
            Malformed: it is no checkpoint.
            Refused, Unavailable: as the market answers.
        """
        blob = await asyncio.to_thread(weights_of, checkpoint)
        if len(blob) > MAX_BLOB_BYTES:
            self._tell("weights_too_large", step=step, bytes=len(blob))
            return
        name = blob_digest(blob)
        signed = checkpoint_digest(self._job, stage, step, name)
        claim = PostCheckpoint(
            stage=stage,
            step=step,
            blob=name,
            session_key=self._session.key,
            signature=self._session.private_key.sign(signed),
        )
        wanted = await retrying(lambda: self._client.post_checkpoint(self._job, claim))
        for _ in range(round(turn * TURN / POLL)):
            if not wanted:
                break
            await self._pause(POLL)
            wanted = not await self._has(name)
        if wanted:
            await retrying(lambda: self._client.put_blob(blob))
            self._tell("weights_uploaded", step=step, bytes=len(blob))

    async def _has(self, name: Digest) -> bool:
        try:
            return await self._client.has_blob(name)
        except Unavailable:
            return False


def weights_of(checkpoint: Path) -> bytes:
    """The weights in a stage's checkpoint as the blob that all of its members make.

    Raises:
        Malformed: it is no safetensors file, or cannot be read.
    """
    try:
        data = checkpoint.read_bytes()
    except OSError as error:
        raise Malformed(f"cannot read {checkpoint}: {error.strerror}") from error
    tensors = tensors_in(data, what=str(checkpoint))
    return encode_weights(
        {
            name: values.astype("<f4")
            for name, values in tensors.items()
            if not name.startswith((EXP_AVG, EXP_AVG_SQ))
        }
    )
