"""Where the trained weights are: claimed by sealed members alone, uploaded once, downloadable."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest, peer_id
from contracts.terms.errors import (
    BadSignature,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    ServiceUnreachable,
)
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StageIndex, StepNumber
from contracts.terms.messages import DataSpec
from market.bodies.jobs import CheckpointView, PostCheckpoint
from market.bodies.routes import GET_CHECKPOINTS
from market.bodies.signing import checkpoint_digest
from market.domain.limits import BlobBounds
from market.domain.sizes import parameters_of
from market.service.rows import CheckpointRow, LeaseRow
from market.service.show_jobs import show_job
from market.service.store_blob import standing_of
from market.service.store_checkpoints import claimed_checkpoints, store_checkpoint
from tallystick.provider.blobs import MarketArtifacts, weights_of
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.parts import download, with_model_of_job
from tests.numerics.loop import saved
from tests.support.fakes.market_memory import MemoryBlobs
from tests.support.history import JobMaker, make_session, make_wallet
from tests.support.market_world import MANIFEST, World, sign_digest
from tests.support.trained_job import CONFIG, PART_BYTES, client_of_app, member_of, trained
from tests.support.weights import in_parts
from training.config import model_spec, optimizer_spec, whole_model
from training.models.adapters import PREFIX
from training.models.sources import parts_of
from training.stages.stage import Stage
from training.telling import tell_nobody

JOB_FILE = {"name": "next", "budget": 1, "price_ceiling": 1, "deadline": "1h"}
BLOB, OTHER = Digest(b"b" * 32), Digest(b"o" * 32)


def saved_stage(folder: Path, step: int) -> tuple[Stage, Path]:
    torch.set_num_threads(1)
    stage = Stage(CONFIG.model, whole_model(CONFIG.model), CONFIG.optimizer)
    return stage, saved(stage, folder / "checkpoints", step)


async def started(world: World, **changed: Any) -> JobMaker:
    """A running job of the micro model with one member, one step sealed."""
    maker = await world.start_job(
        model=model_spec(CONFIG.model),
        optimizer=optimizer_spec(CONFIG.optimizer),
        data=DataSpec(manifest=blob_digest(MANIFEST), seed=3, tokenizer=ZERO_DIGEST),
        rows_per_unit=CONFIG.data.rows_per_unit,
        **changed,
    )
    await world.seal(maker)
    return maker


def claim(
    maker: JobMaker,
    session: Session,
    *,
    stage: int = 0,
    step: int = 1,
    blob: Digest = BLOB,
    failure: str = "",
) -> PostCheckpoint:
    signed = checkpoint_digest(maker.spec.job(), stage, step, blob, failure)
    return PostCheckpoint(
        session_key=session.key,
        stage=StageIndex(stage),
        step=StepNumber(step),
        blob=blob,
        signature=sign_digest(session, signed),
        failure=failure,
    )


async def told(world: World, maker: JobMaker, made: PostCheckpoint) -> bool:
    return await store_checkpoint(
        maker.spec.job(),
        made,
        now=world.now,
        work=world.new_work(),
        histories=world.histories,
        blobs=world.blobs,
    )


async def claims_of(world: World, maker: JobMaker) -> tuple[CheckpointView, ...]:
    found = await claimed_checkpoints(maker.spec.job(), world.new_work())
    return found.checkpoints


async def rows_of(world: World, maker: JobMaker) -> list[int]:
    """Steps that the market has claims of."""
    async with world.new_work() as work:
        return [row.step for row in await work[CheckpointRow].where(job=maker.spec.job())]


async def test_store_checkpoint__step_that_may_be_the_last__takes_the_place_of_the_one_before(
    world: World,
) -> None:
    maker = await started(world)
    session = member_of(maker)
    await told(world, maker, claim(maker, session, blob=OTHER))
    await world.seal(maker, 2)

    for _ in range(2):
        assert await told(world, maker, claim(maker, session, step=3))
    for step in (1, 2):  # neither the last, nor published on the way
        with pytest.raises(Conflict, match=f"step {step} is not one that this job publishes"):
            await told(world, maker, claim(maker, session, step=step))

    (found,) = await claims_of(world, maker)
    assert (found.stage, found.step, found.blob, found.num_bytes) == (0, 3, BLOB, None)
    assert found.peers == (peer_id(session.key),)
    await told(world, maker, claim(maker, session, step=9_999_999))
    assert await rows_of(world, maker) == [9_999_999]
    assert await claims_of(world, maker) == ()


async def test_store_checkpoint__steps_that_the_job_publishes__each_stays_and_no_other(
    world: World,
) -> None:
    maker = await started(world, checkpoint_every=2, publish_every=2)
    session = member_of(maker)
    await world.seal(maker, 4)

    for step in (2, 4, 6, 5, 7, 4, 10, 12, 14, 16):  # 12 are ordered
        await told(world, maker, claim(maker, session, step=step))
    with pytest.raises(Conflict, match="step 3 is not one"):
        await told(world, maker, claim(maker, session, step=3))

    assert await rows_of(world, maker) == [2, 4, 6, 10, 16]
    assert [found.step for found in await claims_of(world, maker)] == [4, 2]
    await world.seal(maker)
    assert [found.step for found in await claims_of(world, maker)] == [6, 4, 2]


async def test_claimed_checkpoints__failure_of_an_older_step__is_over_once_a_newer_one_is_here(
    world: World,
) -> None:
    maker = await started(world, checkpoint_every=1, publish_every=1)
    session, job = member_of(maker), maker.spec.job()
    name, blobs = in_parts(bytes(range(100)), 30)
    await world.seal(maker, 2)

    async def failed() -> list[int]:
        shown = await show_job(job, world.new_work())
        found = await claimed_checkpoints(job, world.new_work())
        assert shown.unpublished == found.unpublished
        return [each.step for each in found.unpublished]

    for step in (1, 3):
        await told(world, maker, claim(maker, session, step=step, failure="no room"))
    assert await failed() == [1, 3]
    world.blobs.blobs.update(blobs)
    await told(world, maker, claim(maker, session, step=2, blob=name))
    assert await failed() == [3]


async def test_quota__member_of_a_job_that_publishes__has_room_for_all_that_it_may_upload(
    world: World,
) -> None:
    maker = await started(world, checkpoint_every=1, publish_every=4)  # of 12 steps: 4, 8, the end
    spec = maker.spec
    bounds, room = BlobBounds(known_from=BaseUnits(1)), {}
    async with world.new_work() as work:
        for account in (maker.members[0].wallet.account, spec.poster):
            room[account] = (await standing_of(account, bounds, work)).parameters

    assert room == {maker.members[0].wallet.account: 3 * parameters_of(spec),
                    spec.poster: parameters_of(spec)}  # fmt: skip


async def test_claimed_checkpoints__step_that_is_not_sealed__is_shown_when_it_is(
    world: World,
) -> None:
    maker = await started(world)
    await told(world, maker, claim(maker, member_of(maker), step=2))

    assert await claims_of(world, maker) == ()

    await world.seal(maker)
    (found,) = await claims_of(world, maker)
    assert found.step == 2


async def test_claimed_checkpoints__indexes_whose_last_part_is_missing__cost_readers_no_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = await started(world, checkpoint_every=1, publish_every=1)
    session = member_of(maker)
    await world.seal(maker, 2)
    for step in (1, 2, 3):
        data = bytes(range(200 + step))
        name, blobs = in_parts(data, 1)
        del blobs[blob_digest(data[-1:])]
        world.blobs.blobs.update(blobs)
        await told(world, maker, claim(maker, session, step=step, blob=name))

    monkeypatch.delattr(type(world.blobs), "size")  # of a bucket each is a request

    assert [found.num_bytes for found in await claims_of(world, maker)] == [None] * 3


async def test_claimed_checkpoints__peers_of_one_owner__are_one_against_two_others(
    world: World,
) -> None:
    maker = await started(world)
    job = maker.spec.job()
    names = {"eve": ("e1", "e2", "e3"), "bob": ("b1",), "cem": ("c1",)}
    async with world.new_work() as work:
        (lease,) = await work[LeaseRow].where(job=job)
        for owner, sessions in names.items():
            account, blob = make_wallet(owner).account, OTHER if owner == "eve" else BLOB
            for name in sessions:
                key = make_session(name).key
                other = Digest(key)  # any name of its own
                await work[LeaseRow].add(
                    replace(lease, lease=other, live_offer=other, account=account, session_key=key)
                )
                row = CheckpointRow(job, peer_id(key), 0, 1, blob, num_bytes=9, failure="")
                await work[CheckpointRow].add(row)

    most, least = await claims_of(world, maker)

    assert (most.blob, len(most.peers)) == (BLOB, 2)
    assert (least.blob, len(least.peers)) == (OTHER, 1)


async def test_store_checkpoint__index_and_all_parts_are_here__is_not_wanted(world: World) -> None:
    maker = await started(world)
    name, blobs = in_parts(bytes(range(100)), 30)
    others = world.blobs.blobs

    for late in blobs:  # one of the parts, or the index, is the last to come
        world.blobs.blobs = {**others, **{each: blobs[each] for each in blobs if each != late}}
        assert await told(world, maker, claim(maker, member_of(maker), blob=name))
        assert [found.num_bytes for found in await claims_of(world, maker)] == [None]
    world.blobs.blobs.update(blobs)
    assert not await told(world, maker, claim(maker, member_of(maker), blob=name))

    (found,) = await claims_of(world, maker)
    assert found.num_bytes == 100


async def test_store_checkpoint__stranger_forger_or_another_stage__refused(world: World) -> None:
    maker = await started(world)
    session = member_of(maker)
    forged = claim(maker, session).model_copy(update={"blob": OTHER})
    unsigned = claim(maker, session).model_copy(update={"failure": "none of theirs"})

    for made, error in (
        (claim(maker, make_session("stranger")), Forbidden),
        (claim(maker, session, stage=1), Forbidden),
        (forged, BadSignature),
        (unsigned, BadSignature),
    ):
        with pytest.raises(error):
            await told(world, maker, made)

    assert await claims_of(world, maker) == ()


async def test_store_checkpoint__job_unknown_or_not_open__refused(world: World) -> None:
    maker = await world.start_job()

    with pytest.raises(Conflict, match="not opened"):
        await told(world, maker, claim(maker, member_of(maker)))
    with pytest.raises(NotFound):
        await claimed_checkpoints(JobId(bytes(32)), world.new_work())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
async def test_download__job_that_started_from_a_chat_model__all_but_the_weights_as_it_was_given(
    world: World, tmp_path: Path, family: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # slow to import

    from tests.support.chat_model import STAYS, files_of

    given = tmp_path / "given"
    async with trained(world, given, tmp_path, family) as (client, maker, stage):
        await download(client, maker.spec.job(), tmp_path / "back")
        with pytest.raises(Refused, match="trains no adapter"):
            await download(client, maker.spec.job(), tmp_path / "merged", merges=True)

    before, after = files_of(given), files_of(tmp_path / "back")
    assert set(before) - set(after) == set(STAYS)
    assert after == {name: data for name, data in before.items() if name not in STAYS}
    assert stage.config.sequence_length == 64
    tokenizers = [AutoTokenizer.from_pretrained(each) for each in (given, tmp_path / "back")]
    models = [AutoModelForCausalLM.from_pretrained(each) for each in (given, tmp_path / "back")]
    turns = [{"role": "user", "content": "a7 b8"}]
    first, second = (each.apply_chat_template(turns, tokenize=False) for each in tokenizers)
    assert first == second == "user: a7 b8<|end|>"
    opened: Any
    for opened in models:
        assert (opened.dtype, opened.config.max_position_embeddings) == (torch.bfloat16, 131_072)
        said = opened.generate(torch.tensor([[60, 61]]), max_new_tokens=40, do_sample=False)
        assert said.tolist() == [[60, 61, 62, 63, 0, 1, 2]]  # it counts on, and stops at 2
        said = opened.generate(torch.tensor([[3]]), max_new_tokens=40, do_sample=False)
        assert said.tolist() == [[3, 4, 5]]  # or at 5
    assert all(
        torch.equal(tensor, models[0].state_dict()[name])
        for name, tensor in models[1].state_dict().items()
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
async def test_download__adapter__is_a_folder_of_peft_or_added_to_the_weights_it_started_from(
    world: World, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given, adapter = tmp_path / "given", {"rank": 4, "alpha": 2, "targets": ["v_proj", "q_proj"]}
    async with trained(world, given, tmp_path, adapter=adapter) as (client, maker, stage):
        job = maker.spec.job()
        await download(client, job, tmp_path / "adapter")
        file = parse_job_file(JOB_FILE | {"model": {"job": job.hex()}})
        for _ in range(2):  # and once more, when it is there
            started = await with_model_of_job(client, file, tmp_path)
        assert started.model_folder == tmp_path / "models" / job.hex()
        with pytest.raises(
            NotFound, match=r"after step 7 are not there yet.*; there are .* step 1$"
        ):
            at_seven = parse_job_file(JOB_FILE | {"model": {"job": f"{job.hex()}@7"}})
            await with_model_of_job(client, at_seven, tmp_path)
        with pytest.raises(NotFound, match=f"model: of job {'ab' * 32} at .*: no such job"):
            unknown = parse_job_file(JOB_FILE | {"model": {"job": "ab" * 32}})
            await with_model_of_job(client, unknown, tmp_path)

    base = AutoModelForCausalLM.from_pretrained(given)
    merged = AutoModelForCausalLM.from_pretrained(started.model_folder)
    before, after, ours = base.state_dict(), merged.state_dict(), stage.weights()
    for name, tensor in before.items():
        layer, wanted = name.removesuffix(".weight"), tensor.float()
        if f"{layer}.lora_A.weight" in ours:
            wanted += ours[f"{layer}.lora_B.weight"] @ ours[f"{layer}.lora_A.weight"] / 2
        assert torch.allclose(after[name], wanted.bfloat16(), rtol=0.01)
    opened = PeftModel.from_pretrained(base, tmp_path / "adapter")
    said: Any = opened.peft_config["default"]
    assert (said.r, said.lora_alpha) == (4, 2)
    loaded = {n: t for n, t in opened.state_dict().items() if "lora_" in n}
    assert {n.removeprefix(PREFIX).replace(".default", "") for n in loaded} == set(ours)
    assert all(
        torch.equal(tensor, ours[name.removeprefix(PREFIX).replace(".default", "")])
        for name, tensor in loaded.items()
    )
    assert not (tmp_path / "adapter" / "config.json").exists()
    AutoTokenizer.from_pretrained(tmp_path / "adapter")


class Losing(MemoryBlobs):
    """Serves only so many blobs; counts what was asked for."""

    def __init__(self, blobs: dict[Digest, bytes]) -> None:
        super().__init__()
        self.blobs = blobs
        self.left = 10**6
        self.served: list[Digest] = []

    async def size(self, name: Digest) -> int | None:
        """See `BlobStore.size`."""
        if self.left == 0:
            raise ServiceUnreachable("the disk is gone")
        return await super().size(name)

    async def read(
        self, name: Digest, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        self.left -= 1
        self.served.append(name)
        yield self.blobs[name][start:end]


async def test_download__broken_off_and_a_part_spoilt__goes_on_with_what_is_there_and_verifies(
    world: World, tmp_path: Path
) -> None:
    maker = await started(world)
    _, saved = saved_stage(tmp_path, 1)
    world.blobs = store = Losing(world.blobs.blobs)
    parts = tmp_path / ".model.parts"

    async with client_of_app(world) as client:
        with pytest.raises(NotFound, match=r"not there yet.*missing: stage 0"):
            await download(client, maker.spec.job(), tmp_path / "model")
        artifacts = MarketArtifacts(
            client, maker.spec.job(), member_of(maker), tell_nobody, part_bytes=PART_BYTES
        )
        for turn in (0, 3):  # and once more after a crash, when it is there already
            await artifacts.publish(StageIndex(0), StepNumber(1), saved, turn=turn)
        num_parts = len(parts_of(weights_of(saved), part_bytes=PART_BYTES).parts)
        store.served.clear()
        store.left = 5  # we fetch the index, and four parts
        with pytest.raises(ServiceUnreachable):
            await download(client, maker.spec.job(), tmp_path / "model")
        kept = sorted(parts.iterdir())
        kept[0].write_bytes(kept[0].read_bytes()[:-1] + b"!")
        before, store.left = len(store.served), 10**6
        await download(client, maker.spec.job(), tmp_path / "model")
        with pytest.raises(Conflict, match="there already"):
            await download(client, maker.spec.job(), tmp_path / "model")

    assert len(kept) == 4
    fetched = [name for name in store.served[before:] if name.hex() in {p.name for p in kept}]
    assert [name.hex() for name in fetched] == [kept[0].name]
    assert len(store.served) - before == 1 + num_parts - 3
    assert (tmp_path / "model" / "model.safetensors").exists() and not parts.exists()


class Full(MemoryBlobs):
    """Takes no part while `error` is set."""

    error: Exception | None = None

    async def put(self, name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int) -> int:
        """See `BlobStore.put`."""
        if self.error is not None:
            raise self.error
        return await super().put(name, chunks, max_bytes=max_bytes)


async def test_publish__market_takes_no_part__the_poster_is_told_and_it_is_tried_on(
    world: World, tmp_path: Path
) -> None:
    maker = await started(world)
    _, saved = saved_stage(tmp_path, 1)
    world.blobs = store = Full()
    store.error = ServiceUnreachable("blob store: No space left on device")
    job = maker.spec.job()

    async with client_of_app(world) as client:
        artifacts = MarketArtifacts(
            client, job, member_of(maker), tell_nobody, patience=timedelta(seconds=0.2)
        )
        publishing = asyncio.create_task(
            artifacts.publish(StageIndex(0), StepNumber(1), saved, turn=0)
        )
        while not (failed := (await client.call(GET_CHECKPOINTS, job=job)).unpublished):
            await asyncio.sleep(0.01)
        with pytest.raises(NotFound, match="after step 1 were not published: blob store: No space"):
            await download(client, job, tmp_path / "model")
        store.error = None
        await publishing
        await download(client, job, tmp_path / "model")
        view = await client.call(GET_CHECKPOINTS, job=job)

    assert [each.reason for each in failed] == ["blob store: No space left on device"]
    assert view.unpublished == ()
