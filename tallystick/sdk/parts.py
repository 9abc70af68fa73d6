"""What is larger than a blob, to and from a market: its parts, and a trained model made of them.

An index lists the parts. Safe to repeat: a part that the market has is not sent again, and one that
is on disk and has its digest is not fetched again. Parts go out as they are read and to disk as
they come.

A trained model is a folder of `transformers`, from the parts that the job's members published.
Every stage is taken after the same step, the newest that the market has of all stages. Where
members of a stage name different indexes, the one with most owners behind it is taken or waited
for, and it is said: members of a stage hold equal bytes, so one of them is wrong. With as many
behind another one neither is taken: who lies could choose which of the two comes first. Before the
last step more than half of the stage's owners have to name it: others may not have spoken yet. Its
parts go to a folder beside the model's and stay there until the model is whole, so that the same
call goes on after an interruption. Neither parts nor model are in memory but tensor by tensor.
"""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from contracts.terms.errors import Conflict, Malformed, NotFinite, NotFound, Refused, TooLarge
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId
from contracts.terms.messages import BatchSpec
from contracts.terms.parts import MAX_WHOLE_BYTES, Parts
from market.bodies.jobs import CheckpointsView, CheckpointView, UnpublishedView
from market.bodies.routes import GET_CHECKPOINTS, GET_JOB
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import PIECE, Signer, measured
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.orders import signed_spec
from training.config import slices_of, train_config, whole_model
from training.memory import FP32
from training.models.sources import FileSource, PartsSource, Source, read
from training.tasks import all_of

# ------------------------------------------------------------------------------------------- parts

UPLOADS = 4
"""On their way at once: one connection does not fill a line with a long way to the market."""

Stored = Callable[[], None]


async def put_parts(
    client: MarketClient,
    source: Source,
    index: Parts,
    *,
    by: Signer,
    stored: Stored = lambda: None,
) -> None:
    """Store what `index` lists, and the index last: who finds it finds the parts.

    Args:
        client: The market.
        source: What the index was made of.
        index: Its parts.
        by: At whose expense.
        stored: Called for each part once the market has it.

    Raises:
        WrongBytes: `source` is no longer what the index was made of, says the market.
        Refused, Unavailable: as the market answers.
    """

    async def put(number: int) -> None:
        name, start = index.parts[number], number * index.part_bytes
        size = index.size_of(number)
        if not await client.has_blob(name):
            content = partial(_pieces, source, start, start + size)
            await client.put_pieces(name, size, content, by=by)
        stored()

    await few_at_once(partial(put, number) for number in range(len(index.parts)))
    await client.put_blob(index.encoded(), by=by)


async def few_at_once(uploads: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run these, `UPLOADS` at a time; the first error cancels the others and is raised."""
    lanes = asyncio.Semaphore(UPLOADS)

    async def run(upload: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with lanes:
            await upload()

    await all_of(map(run, uploads))


async def _pieces(source: Source, start: int, end: int) -> AsyncIterator[bytes]:
    for first in range(start, end, PIECE):
        yield await asyncio.to_thread(_piece, source, first, min(first + PIECE, end))


def _piece(source: Source, start: int, end: int) -> bytes:
    return bytes(read(source, start, end))


async def get_parts(
    client: MarketClient, name: Digest, folder: Path, *, until: int = MAX_WHOLE_BYTES
) -> Source:
    """What the index `name` lists, in files of `folder`, which is made if need be.

    Of a longer one only the parts that bytes before `until` lie in.

    Raises:
        NotFound: the market has not all of it. WrongBytes: it answered with other bytes.
        Malformed, UnknownVersion: no index. OSError: a file cannot be written.
    """
    index = Parts.decoded(await client.get_blob(name, max_bytes=Parts.max_bytes))
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    for part in index.parts[: -(-until // index.part_bytes)]:
        path = folder / part.hex()
        if not await asyncio.to_thread(_is_here, path, part):
            await client.save_blob(part, path)
    return PartsSource(index, lambda part: FileSource(folder / part.hex()))


def _is_here(path: Path, name: Digest) -> bool:
    return path.is_file() and measured(path)[1] == name


# --------------------------------------------------------------------------------- a trained model

ENDED = ("finished", "closed")
PATIENCE, POLL = 30.0, 0.5  # seconds; members take turns to upload, see `provider/blobs.py`

Say = Callable[[str], None]


@dataclass(frozen=True)
class Chosen:
    """Which index of each stage makes the model after `step`."""

    step: int
    stages: tuple[CheckpointView, ...]
    disputed: tuple[int, ...]  # stages whose members differ


@dataclass(frozen=True)
class Wanted:
    """Which weights of a job are asked for."""

    batch: BatchSpec
    step: int | None = None  # None: the newest
    last: int | None = None  # see `last_step`

    def num_owners(self, step: int) -> int:
        """Of a stage, who have to name the same weights so that they are believed."""
        return 1 if step == self.last else self.batch.peers_per_stage // 2 + 1


def last_step(state: str, newest: int) -> int | None:
    """After which a job ended with its last seal; None: it goes on, or failed without that seal.

    Of a failed job members have no weights of the newest step but those that they published.
    """
    return newest if state in ENDED else None


async def download(
    client: MarketClient,
    job: JobId,
    folder: Path,
    *,
    merges: bool | None = False,
    step: int | None = None,
    say: Say = lambda line: None,
) -> Chosen:
    """Write the trained model of `job` to `folder`, which must not be there yet.

    What stood beside the weights that the job started from stands beside them again. Of an adapter
    it is a folder of `peft`, or with `merges` the model with the adapter added to its weights; None
    is with `merges` if there is an adapter. Without a `step` it is the newest that is here.

    Weights of a job that has ended are waited for, as they are perhaps on their way. What a call
    that was interrupted has fetched is not fetched again.

    Raises:
        NotFound: no such job, or not all of its stages have published weights; says what failed.
        Conflict: there is something at `folder`. BadSignature: the market answers with another job.
        Refused: the extra `models` is missing, the disk has no room, or there is no adapter to add.
        WrongBytes, Malformed, NotFinite: parts are not what was claimed, or do not fit the job.
    """
    try:
        from training.models.adapters import Merged, write_adapter
        from training.models.folder import beside_in, write_folder
        from training.models.parameters import model_shapes, parameter_shapes
        from training.models.weights import MOST_BEFORE_TENSORS, Weights, merged, stored_weights
    except ImportError as error:
        raise Refused(
            "writing a model needs numpy and safetensors: pip install 'tallystick[models]'"
        ) from error
    if folder.exists():
        raise Conflict(f"{folder} is there already: name a new folder")
    view = await client.call(GET_JOB, job=job)
    spec = signed_spec(view.signed, job).message
    model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    if merges and model.adapter is None:
        raise Refused(f"job {job.hex()} trains no adapter that could be merged")
    merges = model.adapter is not None if merges is None else merges
    last = last_step(view.state, view.progress.step)
    wanted = Wanted(spec.batch, step, last)
    looks = 0 if last is None or step not in (None, last) else round(PATIENCE / POLL)
    chosen = await _published(client, job, wanted, looks=looks, say=say)
    for stage in chosen.disputed:
        say(f"members of stage {stage} differ after step {chosen.step}: most of them are believed")
    parts = folder.with_name(f".{folder.name}.parts")
    base = model_shapes(model, whole_model(model)) if merges else {}
    num_bytes = FP32 * sum(map(math.prod, base.values()))
    _need_room(folder, num_bytes + sum(found.num_bytes or 0 for found in chosen.stages))
    pieces: list[Weights] = []
    for part, found in zip(slices_of(model, spec.batch.layer_ends), chosen.stages, strict=True):
        what = f"stage {found.stage} after step {found.step}"
        file = await _fetched(client, found.blob, parts)
        pieces.append(stored_weights(file, parameter_shapes(model, part), what=what))
        say(f"{what}: {file.num_bytes} bytes, from {len(found.peers)} owners")
    named = spec.data.tokenizer
    tokenizer = None if named == ZERO_DIGEST else await client.get_blob(named)
    weights, differing = await asyncio.to_thread(merged, pieces)
    for name in differing:
        say(f"the stages' copies of {name} differ after step {chosen.step}: the first is taken")
    beside, start = None, spec.model.weights
    if merges:
        file = await _fetched(client, start, parts)
        stored = await asyncio.to_thread(partial(stored_weights, file, base, what="the start"))
        weights = Merged(model, stored, weights)
    if start != ZERO_DIGEST:
        try:
            file = await _fetched(client, start, parts, until=MOST_BEFORE_TENSORS)
            beside = await asyncio.to_thread(partial(beside_in, file, what="the start"))
        except (
            NotFound,
            Malformed,
            Refused,
            TooLarge,
        ) as error:  # the weights are paid for
            beside = None
            say(f"of what the job started from: {error}")
        if not beside:
            say("the files beside the weights are made anew")
    if model.adapter is not None and not merges:
        write = partial(write_adapter, folder, model, weights, start.hex(), tokenizer, beside)
        await asyncio.to_thread(write)
    else:
        try:
            await asyncio.to_thread(write_folder, folder, model, weights, tokenizer, beside)
        except (Malformed, NotFinite, Refused) as error:  # such as fp16, which these exceed
            if not beside:
                raise
            say(f"{error}: the model is written as fp32, what is beside its weights is made anew")
            await asyncio.to_thread(write_folder, folder, model, weights, tokenizer)
    await asyncio.to_thread(shutil.rmtree, parts, ignore_errors=True)
    return chosen


async def with_model_of_job(
    client: MarketClient, file: JobFile, folder: Path, *, say: Say = lambda line: None
) -> JobFile:
    """The file with a folder in place of the job that its model is of, downloaded once.

    The folder lies in `folder`, under the words of the file, so that the same file goes on from the
    same model: also one that named no step, when a newer one has come.

    Raises:
        As `download`.
    """
    if file.model_job is None:
        return file
    name, _, step = file.model_job.partition("@")
    model = folder / "models" / file.model_job
    if model.exists():
        say(f"model: downloaded before; to have it anew delete {model}")
    else:
        job, at = JobId(bytes.fromhex(name)), int(step) if step else None
        try:
            chosen = await download(client, job, model, merges=None, step=at, say=say)
        except NotFound as error:
            raise NotFound(f"model: of job {name} at {client.url}: {error.message}") from error
        say(f"model: that of job {name} after step {chosen.step}, in {model}")
    return file.with_model_folder(model)


def _need_room(folder: Path, num_bytes: int) -> None:
    """The parts, and the model that is made of them."""
    above = next(path for path in folder.absolute().parents if path.exists())
    free = shutil.disk_usage(above).free
    if free < (needed := 2 * num_bytes):
        raise Refused(
            f"{folder} needs {needed} bytes of disk while the model is made, {free} are free",
            needed=needed,
            free=free,
        )


async def _fetched(
    client: MarketClient, name: Digest, parts: Path, *, until: int = MAX_WHOLE_BYTES
) -> Source:
    try:
        return await get_parts(client, name, parts, until=until)
    except OSError as error:
        raise Refused(f"cannot write {parts}: {error.strerror}") from error


async def _published(
    client: MarketClient, job: JobId, wanted: Wanted, *, looks: int, say: Say
) -> Chosen:
    """What `choose` chooses, at the latest at one look after `looks` others for the last step."""
    exact = replace(wanted, step=wanted.step or wanted.last)
    for look in range(looks):
        try:
            return choose(await client.call(GET_CHECKPOINTS, job=job), exact)
        except NotFound:
            if look == 0:
                say(f"waiting up to {PATIENCE:.0f} s for the members' weights")
            await asyncio.sleep(POLL)
    return choose(await client.call(GET_CHECKPOINTS, job=job), wanted)


def choose(view: CheckpointsView, wanted: Wanted) -> Chosen:
    """The newest step after which the market has every stage, or the one asked for: its indexes.

    Args:
        view: Claims by stage, the newest step first, then by the number of owners.
        wanted: Of which job, and after which step.

    Raises:
        NotFound: there is no such step; says which stages are missing, which steps there are, and
            what failed.
    """
    num_stages = wanted.batch.stages
    claims = view.checkpoints
    found: dict[tuple[int, int], list[CheckpointView]] = {}
    for claim in claims:
        found.setdefault((claim.step, claim.stage), []).append(claim)
    # Only what most of them name: a single liar who uploads first must not be believed meanwhile.
    tied = {place: views for place, views in found.items() if _is_tied(views)}
    here = {
        place
        for place, views in found.items()
        if views[0].num_bytes is not None
        and place not in tied
        and len(views[0].peers) >= wanted.num_owners(place[0])
    }
    steps = [
        step
        for step in sorted({step for step, _ in here}, reverse=True)
        if all((step, stage) in here for stage in range(num_stages))
    ]
    for step in steps:
        if wanted.step in (None, step):
            of_step = [found[step, stage] for stage in range(num_stages)]
            return Chosen(
                step,
                tuple(views[0] for views in of_step),
                tuple(views[0].stage for views in of_step if len(views) > 1),
            )
    missing = [
        str(stage)
        for stage in range(num_stages)
        if not any(of == stage and wanted.step in (None, step) for step, of in here)
    ]
    every = wanted.batch.publish_every
    raise NotFound(
        "the weights "
        + (f"after step {wanted.step} " if wanted.step else "")
        + "are not there yet: members publish them "
        + (f"after each {every} steps and " if every else "")
        + "when the job has ended"
        + (f" (missing: stage {', '.join(missing)})" if missing else "")
        + (f"; there are those after step {', '.join(map(str, steps))}" if steps else "")
        + "".join(
            f"; of stage {stage} after step {step} only {len(views[0].peers)} of "
            f"{wanted.num_owners(step)} owners name the same weights"
            for (step, stage), views in found.items()
            if wanted.step in (None, step) and len(views[0].peers) < wanted.num_owners(step)
        )
        + "".join(
            f"; members of stage {stage} differ after step {step}, as many of them name "
            + " as ".join(each.blob.hex() for each in views)
            for (step, stage), views in tied.items()
        )
        + "".join(f"; {line}" for line in unpublished_lines(view.unpublished))
    )


def _is_tied(views: Sequence[CheckpointView]) -> bool:
    return len(views) > 1 and len(views[0].peers) == len(views[1].peers)


def unpublished_lines(failed: Sequence[UnpublishedView]) -> tuple[str, ...]:
    """What could not be uploaded, a line for each stage and reason."""
    lines = (
        f"weights of stage {each.stage} after step {each.step} were not published: {each.reason}"
        for each in failed
    )
    return tuple(dict.fromkeys(lines))
