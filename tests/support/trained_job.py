"""A job that started from a chat model's folder, has ended, and whose weights are with a market."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import torch

from contracts.keys.wallet import Session
from contracts.terms.digest import blob_digest
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.messages import DataSpec
from market.api.app import make_app
from tallystick.provider.blobs import MarketArtifacts
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.job_spec import prepare
from tests.numerics.loop import saved
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.history import JobMaker
from tests.support.market_world import MANIFEST, World
from training.config import model_spec, optimizer_spec, whole_model
from training.models.starting import starting_weights
from training.recipes import micro
from training.stages.stage import Stage
from training.telling import tell_nobody

CONFIG = micro()
PART_BYTES = 5000


def member_of(maker: JobMaker) -> Session:
    """The key of its first member."""
    return maker.members[0].session


def client_of_app(world: World) -> MarketClient:
    """A client of the real API, in this process."""
    transport = httpx.ASGITransport(make_app(world.api()), raise_app_exceptions=False)
    return MarketClient("http://127.0.0.1:1", transport=transport)


@asynccontextmanager
async def trained(
    world: World, given: Path, folder: Path, family: str = "llama", **said: object
) -> AsyncIterator[tuple[MarketClient, JobMaker, Stage]]:
    """A job that started from the folder `given` and has published; `said` stands in its file."""
    from tests.support.chat_model import chat_folder, chat_text  # slow to import

    chat_folder(given, family)
    (folder / "text.txt").write_text(chat_text())
    job = parse_job_file(
        {
            "name": "a chat", "recipe": "micro", "budget": 10, "price_ceiling": 2000,
            "deadline": "1h", "data": str(folder / "text.txt"),
            "model": {"folder": str(given), "sequence_length": 64}, **said,
        }
    )  # fmt: skip
    prepared = prepare(job, folder / "data", part_bytes=PART_BYTES)
    start = prepared.start
    assert start is not None and prepared.tokenizer_file is not None
    parts = [start.fetch(name) for name in (*start.index.parts, start.index.digest())]
    data = [path.read_bytes() for _, path in prepared.corpus.files()]
    for blob in (*parts, *data, prepared.tokenizer_file):
        world.blobs.blobs[blob_digest(blob)] = blob
    model = prepared.config.model
    maker = await world.start_job(
        model=model_spec(model, weights=start.index.digest()),
        optimizer=optimizer_spec(CONFIG.optimizer),
        data=DataSpec(manifest=blob_digest(MANIFEST), seed=3, tokenizer=prepared.tokenizer),
        rows_per_unit=CONFIG.data.rows_per_unit,
    )
    await world.seal(maker)
    stage, whole = Stage(model, whole_model(model), CONFIG.optimizer), whole_model(model)
    first = starting_weights(maker.spec.model, model, whole, MemoryBlobs(world.blobs.blobs))
    if model.adapter is not None:  # B begins at zero
        first = {name: torch.randn_like(tensor) for name, tensor in first.items()}
    stage.load(first | stage.moments(), 0)
    path = saved(stage, folder / "checkpoints", 1)
    async with client_of_app(world) as client:
        artifacts = MarketArtifacts(
            client, maker.spec.job(), member_of(maker), tell_nobody, part_bytes=PART_BYTES
        )
        await artifacts.publish(StageIndex(0), StepNumber(1), path, turn=0)
        yield client, maker, stage
