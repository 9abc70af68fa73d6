"""Where the trained weights are: claimed by sealed members alone, uploaded once, downloadable."""

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.keys.wallet import Session
from contracts.terms.digest import blob_digest, peer_id
from contracts.terms.errors import BadSignature, Conflict, Forbidden, NotFound
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StageIndex, StepNumber
from contracts.terms.messages import DataSpec
from market.api.app import make_app
from market.api.schemas import checkpoint_digest
from market.service.store_checkpoints import Claim, claimed_checkpoints, store_checkpoint
from tallystick.provider.artifacts import TURN, MarketArtifacts, weights_of
from tallystick.sdk.client import MarketClient
from tallystick.sdk.download import download
from tests.integration.market.client import ON_MEMORY
from tests.support.history import JobMaker, make_session
from tests.support.market_world import MANIFEST, World, sign_digest
from training.config import model_spec, optimizer_spec, whole_model
from training.recipes import micro
from training.stages.checkpoint import save_checkpoint
from training.stages.stage import Stage

CONFIG = micro()
BLOB, OTHER = Digest(b"b" * 32), Digest(b"o" * 32)


def silent(event: str, **fields: object) -> None:
    """A log that nobody reads."""


async def started(world: World) -> JobMaker:
    """A running job of the micro model with one member, one step sealed."""
    maker = await world.start_job(
        model=model_spec(CONFIG.model),
        optimizer=optimizer_spec(CONFIG.optimizer),
        data=DataSpec(manifest=blob_digest(MANIFEST), seed=3, tokenizer=ZERO_DIGEST),
        rows_per_unit=CONFIG.data.rows_per_unit,
    )
    maker.seal_step()
    await world.send(maker)
    return maker


async def seal(world: World, maker: JobMaker, *, num_steps: int) -> None:
    """The job goes on."""
    sent = len(maker.items)
    for _ in range(num_steps):
        maker.seal_step()
    await world.send(maker, sent)


def member_of(maker: JobMaker) -> Session:
    return maker.members[0].session


def claim(
    maker: JobMaker, session: Session, *, stage: int = 0, step: int = 1, blob: Digest = BLOB
) -> Claim:
    signed = checkpoint_digest(maker.spec.job(), stage, step, blob)
    return Claim(session.key, stage, step, blob, sign_digest(session, signed))


async def told(world: World, maker: JobMaker, made: Claim) -> bool:
    return await store_checkpoint(
        maker.spec.job(),
        made,
        now=world.now,
        work=world.new_work(),
        histories=world.histories,
        blobs=world.blobs,
    )


def client_of_app(world: World) -> MarketClient:
    transport = httpx.ASGITransport(make_app(world.api()), raise_app_exceptions=False)
    return MarketClient("http://127.0.0.1:1", transport=transport)


async def test_store_checkpoint__newest_claim_of_a_member__is_listed_and_older_ones_change_nothing(
    world: World,
) -> None:
    maker = await started(world)
    session = member_of(maker)
    await seal(world, maker, num_steps=2)

    for step, blob in ((1, OTHER), (3, BLOB), (2, OTHER), (3, BLOB)):
        assert await told(world, maker, claim(maker, session, step=step, blob=blob))

    (found,) = await claimed_checkpoints(maker.spec.job(), world.new_work(), world.blobs)
    assert (found.stage, found.step, found.blob, found.num_bytes) == (0, 3, BLOB, None)
    assert found.peers == (peer_id(session.key),)


@ON_MEMORY
async def test_claimed_checkpoints__step_that_is_not_sealed__is_shown_when_it_is(
    world: World,
) -> None:
    maker = await started(world)
    await told(world, maker, claim(maker, member_of(maker), step=2))

    assert await claimed_checkpoints(maker.spec.job(), world.new_work(), world.blobs) == []

    await seal(world, maker, num_steps=1)
    (found,) = await claimed_checkpoints(maker.spec.job(), world.new_work(), world.blobs)
    assert found.step == 2


@ON_MEMORY
async def test_store_checkpoint__blob_is_here__is_not_wanted(world: World) -> None:
    maker = await started(world)
    world.blobs.blobs[BLOB] = b"some"

    assert not await told(world, maker, claim(maker, member_of(maker)))

    (found,) = await claimed_checkpoints(maker.spec.job(), world.new_work(), world.blobs)
    assert found.num_bytes == 4


@ON_MEMORY
async def test_store_checkpoint__stranger_forger_or_another_stage__refused(world: World) -> None:
    maker = await started(world)
    session = member_of(maker)
    forged = replace(claim(maker, session), blob=OTHER)

    for made, error in (
        (claim(maker, make_session("stranger")), Forbidden),
        (claim(maker, session, stage=1), Forbidden),
        (forged, BadSignature),
    ):
        with pytest.raises(error):
            await told(world, maker, made)

    assert await claimed_checkpoints(maker.spec.job(), world.new_work(), world.blobs) == []


@ON_MEMORY
async def test_store_checkpoint__job_unknown_or_not_open__refused(world: World) -> None:
    maker = await world.start_job()

    with pytest.raises(Conflict, match="not opened"):
        await told(world, maker, claim(maker, member_of(maker)))
    with pytest.raises(NotFound):
        await claimed_checkpoints(JobId(bytes(32)), world.new_work(), world.blobs)


@ON_MEMORY
async def test_download__weights_that_a_member_published__open_in_transformers(
    world: World, tmp_path: Path
) -> None:
    maker = await started(world)
    torch.set_num_threads(1)
    stage = Stage(CONFIG.model, whole_model(CONFIG.model), CONFIG.optimizer)
    saved = save_checkpoint(stage, tmp_path / "checkpoints", 1)

    async with client_of_app(world) as client:
        with pytest.raises(NotFound, match=r"not there yet.*missing: stage 0"):
            await download(client, maker.spec.job(), tmp_path / "model")
        artifacts = MarketArtifacts(client, maker.spec.job(), member_of(maker), silent)
        for turn in (0, 3):  # and once more after a crash, when it is there already
            await artifacts.publish(StageIndex(0), StepNumber(1), saved.path, turn=turn)
        chosen = await download(client, maker.spec.job(), tmp_path / "model")
        with pytest.raises(Conflict, match="there already"):
            await download(client, maker.spec.job(), tmp_path / "model")

    assert chosen.step == 1
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(np.array_equal(opened[name], value) for name, value in stage.weights().items())


@ON_MEMORY
async def test_download__job_has_just_ended__waits_until_its_members_have_published(
    world: World, tmp_path: Path
) -> None:
    maker = await started(world)
    sent = len(maker.items)
    maker.seal_step(last=True)
    await world.send(maker, sent)
    stage = Stage(CONFIG.model, whole_model(CONFIG.model), CONFIG.optimizer)
    saved = save_checkpoint(stage, tmp_path / "checkpoints", 2)

    async with client_of_app(world) as client:
        artifacts = MarketArtifacts(client, maker.spec.job(), member_of(maker), silent)

        async def publish(_seconds: float) -> None:
            await artifacts.publish(StageIndex(0), StepNumber(2), saved.path, turn=0)

        chosen = await download(client, maker.spec.job(), tmp_path / "model", pause=publish)

    assert chosen.step == 2
    assert (tmp_path / "model" / "config.json").exists()


@ON_MEMORY
async def test_publish__nobody_before_us_uploads__we_do_after_our_turn(
    world: World, tmp_path: Path
) -> None:
    maker = await started(world)
    stage = Stage(CONFIG.model, whole_model(CONFIG.model), CONFIG.optimizer)
    saved = save_checkpoint(stage, tmp_path, 1)
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    async with client_of_app(world) as client:
        artifacts = MarketArtifacts(client, maker.spec.job(), member_of(maker), silent, pause=pause)
        await artifacts.publish(StageIndex(0), StepNumber(1), saved.path, turn=2)

    assert sum(waited) == 2 * TURN
    assert blob_digest(weights_of(saved.path)) in world.blobs.blobs
