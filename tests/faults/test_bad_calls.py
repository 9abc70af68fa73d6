"""Every method of a job, called wrongly: malformed, oversized, by the wrong party, with nonsense.

The loop runs over the registry, so a new method is tried too. Whatever comes back has to be an
error of ours; an unknown exception, or a change of state, fails.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session
from contracts.terms import errors
from contracts.terms.history import decode_kept, encode_kept
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    ChunkIndex,
    PeerId,
    SessionKey,
    StageIndex,
    StepNumber,
    UnitId,
)
from contracts.terms.messages import Assignment, AverageSet, Seal, StepClose
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.fakes.counting import CountingCompute
from tests.support.history import DOMAIN, make_session, messages_of
from tests.support.pipeline import worker_of
from tests.support.swarm_job import MemorySwarm, make_papers
from training.coordinator.answers import Answers as CoordinatorAnswers
from training.coordinator.book import Book, Signer
from training.coordinator.items import Items
from training.coordinator.measuring import Measuring
from training.journal import Journal
from training.tasks import end
from training.telling import tell_nobody
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.wire import PING, RELAY, AnyMethod, Passed, WireMessage
from training.worker.answers import Answers as WorkerAnswers
from training.worker.download import RANGE
from training.worker.work import Work

STRANGER = make_session("stranger")
STAGE, UNIT, CHUNK = StageIndex(0), UnitId(0), ChunkIndex(0)
NUM_STEPS = 2


def nobody_idle(_account: Address) -> None:
    """Everybody has a bond and a limit."""


@dataclass
class Served:
    """Both processes' handlers, and the keys of whom they know."""

    swarm: MemorySwarm
    coordinator: Dispatcher
    worker: Dispatcher
    work: Work
    record: JobRecord

    @property
    def keys(self) -> dict[str, SessionKey]:
        """Everybody who might call."""
        papers = self.swarm.papers
        return {
            "coordinator": papers.session.key,
            "ann": papers.members["ann"].session.key,
            "stranger": STRANGER.key,
        }

    def snapshot(self) -> tuple[Any, ...]:
        """What a wrong call must not change."""
        at = self.work.station
        return (at.applied, self.work.held(), at.roots, len(at.book.commits), at.compute.units)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    papers = make_papers("ann", steps=NUM_STEPS, units_per_step=2, chunks=2)
    swarm = MemorySwarm(papers, tmp_path)
    measuring = Measuring(papers.job)
    signer = Signer(papers.coordinator, papers.session, DOMAIN)
    making = worker_of(papers, "ann", tmp_path, tell_nobody, lambda _: CountingCompute(2))
    async with making as (work, _):
        ours = Journal(tmp_path / "c")
        book = Book(ours, papers.spec, papers.opening, signer, tell_nobody)
        items = Items(book, clock=lambda: UnixMillis(1000), why_idle=nobody_idle, tell=tell_nobody)
        answers = CoordinatorAnswers(
            book,
            dict,
            measuring,
            items,
            clock=lambda: UnixMillis(1000),
            welcome=lambda _peer: None,
            why_idle=nobody_idle,
        )
        await work.states.take_stage(STAGE, StepNumber(0))
        yield Served(
            swarm,
            answers.dispatcher(),
            WorkerAnswers(work).dispatcher(),
            work,
            work.book.record,
        )
        ours.close()


async def refused(
    served: Served, who: str, method: str, header: bytes
) -> set[type[errors.TallystickError]]:
    """What both processes say to a call that has to be refused."""
    kinds = set()
    for dispatcher in (served.coordinator, served.worker):
        try:
            await dispatcher.handle(served.keys[who], method, header, ())
        except errors.TallystickError as error:
            kinds.add(type(error))
        else:
            raise AssertionError(f"{who} got an answer to {method}")
    return kinds


async def test_methods__header_is_garbage__refused_with_an_error_of_ours(served: Served) -> None:
    garbage = (b"", b"\xc1", b"\x80", b"{}", b"\x81\xa4kind\xa7nothing", bytes(300))
    before = served.snapshot()

    for who, method, header in product(served.keys, calls.METHODS, garbage):
        kinds = await refused(served, who, method, header)
        assert all(issubclass(kind, errors.Refused) for kind in kinds), (who, method, header)

    assert served.snapshot() == before


async def test_methods__header_over_its_bound__refused_before_it_is_read(served: Served) -> None:
    for who, (name, method) in product(("coordinator", "ann"), calls.METHODS.items()):
        kinds = await refused(served, who, name, bytes(method.max_header_bytes + 1))
        assert kinds <= {errors.TooLarge, errors.Forbidden, errors.NotFound}, (who, name)


def requests(served: Served) -> dict[str, WireMessage]:
    """A well-formed request of each method."""
    job = served.record.job
    part = calls.PartName(grad_commit=ZERO_DIGEST, chunk=CHUNK)
    return {
        RELAY.name: Passed(
            to=served.keys["ann"], method=PING.name, milliseconds=1000, max_bytes=1000
        ),
        calls.JOIN.name: calls.Join(job=job, address="x:1", bandwidth=1, applied=0, held=()),
        calls.GET_MEMBERS.name: calls.GetMembers(job=job),
        calls.LEAVE.name: calls.Leave(job=job),
        calls.REPORT.name: calls.Report(job=job),
        calls.FIND.name: calls.Find(job=job, digest=ZERO_DIGEST),
        calls.NEXT_ITEM.name: calls.NextItem(
            job=job, is_first=True, results=(), failed=(), holding=()
        ),
        calls.MEASURE.name: calls.Measure(job=job, stage=STAGE, seed=0),
        calls.GET_TENSOR.name: calls.GetTensor(job=job, step=1, digest=ZERO_DIGEST),
        calls.CLOSE_STEP.name: calls.CloseStep(members=()),
        calls.FETCH_PARTS.name: calls.FetchParts(members=(), parts=(part,)),
        calls.TAKE_PARTS.name: calls.TakeParts(members=(), num_commits=1, parts=(part,)),
        calls.SUM_CHUNKS.name: calls.SumChunks(members=(), chunks=(CHUNK,)),
        calls.HOLD_CHUNKS.name: calls.HoldChunks(members=(), num_chunks=1),
        calls.TAKE_CHUNK.name: calls.TakeChunk(members=()),
        calls.TAKE_SEAL.name: calls.TakeSeal(members=(), all_applied=0),
        calls.GET_PART.name: calls.GetPart(part=part),
        calls.GET_CHUNK.name: calls.GetChunk(step=1, stage=STAGE, chunk=CHUNK),
        calls.GET_STATE.name: calls.GetState(job=job, stage=STAGE, step=2),
        calls.GET_STATE_RANGE.name: calls.GetStateRange(
            job=job, stage=STAGE, step=2, start=0, end=1
        ),
        calls.GET_WEIGHTS.name: calls.GetWeights(job=job, stage=STAGE, step=2),
        calls.GET_WEIGHTS_RANGE.name: calls.GetWeightsRange(
            job=job, stage=STAGE, step=2, start=0, end=1
        ),
    }


WRONG_PARTY: tuple[tuple[AnyMethod, str], ...] = (
    (calls.MEASURE, "ann"),
    (calls.TAKE_PARTS, "ann"),
    (calls.CLOSE_STEP, "ann"),
    (calls.FETCH_PARTS, "ann"),
    (calls.SUM_CHUNKS, "ann"),
    (calls.TAKE_SEAL, "ann"),
    (calls.NEXT_ITEM, "coordinator"),
)


async def test_methods__stranger_asks_well_formed__is_refused(served: Served) -> None:
    asked = requests(served)
    assert asked.keys() == calls.METHODS.keys() - {PING.name}

    for method, request in asked.items():
        kinds = await refused(served, "stranger", method, request.encoded())
        assert kinds <= {errors.Forbidden, errors.NotFound}, method


async def test_methods__known_but_wrong_party__is_forbidden(served: Served) -> None:
    asked = requests(served)

    for method, who in WRONG_PARTY:
        kinds = await refused(served, who, method.name, asked[method.name].encoded())
        assert errors.Forbidden in kinds, (method.name, who)


async def test_worker__signed_message_missing_or_nonsense__is_malformed(served: Served) -> None:
    nonsense = ((), (b"",), (b"\x80" * 100,), (served.swarm.papers.spec.encoded(),))

    methods: tuple[AnyMethod, ...] = (calls.CLOSE_STEP, calls.SUM_CHUNKS, calls.TAKE_SEAL)
    for method, given in product(methods, nonsense):
        with pytest.raises(errors.Refused):
            await handle_worker(served, method, given)
    for given in nonsense[:2] + nonsense[3:]:
        with pytest.raises((errors.Malformed, errors.UnknownVersion)):
            await handle_worker(served, calls.TAKE_PARTS, given)


async def handle_worker(served: Served, method: AnyMethod, tensors: Sequence[bytes]) -> None:
    header = requests(served)[method.name].encoded()
    given = tuple(memoryview(tensor) for tensor in tensors)
    await served.worker.handle(served.keys["coordinator"], method.name, header, given)


def step_close(served: Served, step: int = 1) -> StepClose:
    at = UnixMillis(1000)
    return StepClose(
        job=served.record.job,
        step=StepNumber(step),
        revision=0,
        assignments=(Assignment(stage=STAGE, peer=served.work.station.peer, units=(UNIT,)),),
        closed_at=at,
        commit_ends=at,
        exchange_ends=at,
    )


async def test_worker__close_or_average_set_signed_by_another_key__is_a_bad_signature(
    served: Served,
) -> None:
    average = AverageSet(
        job=served.record.job, step=StepNumber(1), step_close=ZERO_DIGEST, members=()
    )

    with pytest.raises(errors.BadSignature):
        await handle_worker(served, calls.CLOSE_STEP, [STRANGER.sign(step_close(served)).encoded()])
    with pytest.raises(errors.BadSignature):
        await handle_worker(served, calls.SUM_CHUNKS, [STRANGER.sign(average).encoded()])


async def test_worker__close_of_a_step_that_has_not_come__is_unavailable(served: Served) -> None:
    signed = served.swarm.papers.session.sign(step_close(served, step=2))

    with pytest.raises(errors.Unavailable):
        await handle_worker(served, calls.CLOSE_STEP, [signed.encoded()])


NO_SUCH_PASS: tuple[tuple[dict[str, Any], type[errors.TallystickError]], ...] = (
    ({"unit": 2}, errors.Conflict),
    ({"step": 2}, errors.Unavailable),
    ({"step": 0}, errors.Conflict),
    ({"direction": "evaluate"}, errors.Unavailable),
    ({"direction": "evaluate", "step": 0, "unit": 60_000}, errors.Conflict),
    ({"direction": "backward"}, errors.Malformed),
    ({"x": calls.Held(digest=ZERO_DIGEST, holders=(PeerId(ZERO_DIGEST),))}, errors.Malformed),
)


async def test_worker__pass_of_what_does_not_exist__is_refused_and_changes_nothing(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, said = served.snapshot(), dict[calls.TaskName, str]()
    forward = calls.Task(direction="forward", step=1, unit=UNIT, attempt=0)
    wrong = {
        task.name: (task, error.code)
        for number, (change, error) in enumerate(NO_SUCH_PASS)
        for task in [forward.model_copy(update={"attempt": number} | change)]
    }
    is_told, forever = asyncio.Event(), asyncio.Event()

    async def give(request: calls.NextItem) -> calls.ItemTasks:
        said.update({failure.task: failure.code for failure in request.failed})
        if said.keys() == wrong.keys():
            is_told.set()
        if not (request.is_first or request.failed):
            await forever.wait()
        tasks = tuple(task for task, _ in wrong.values()) if request.is_first else ()
        return calls.ItemTasks(tasks=tasks, drops=())

    monkeypatch.setattr(served.work.station.peers, "next_tasks", give)
    talking = asyncio.create_task(served.work.tasks.talk())
    await is_told.wait()
    await end([talking])

    assert said == {name: code for name, (_, code) in wrong.items()}
    assert served.snapshot() == before


async def test_worker__more_of_a_checkpoint_at_once_than_a_range__is_malformed(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vast = tmp_path / "vast"
    with vast.open("wb") as sparse:
        sparse.truncate(RANGE + 1)
    monkeypatch.setattr(served.work.station.compute, "checkpoint", lambda *_: vast)
    wrong = calls.GetStateRange(job=served.record.job, stage=STAGE, step=2, start=0, end=RANGE + 1)

    with pytest.raises(errors.Malformed, match="at once"):
        await served.worker.handle(
            served.keys["ann"], calls.GET_STATE_RANGE.name, wrong.encoded(), ()
        )


async def test_coordinator__lease_that_is_not_in_the_roster__is_forbidden(served: Served) -> None:
    header = requests(served)[calls.JOIN.name].encoded()
    lease = served.swarm.papers.leases["ann"].encoded()

    with pytest.raises(errors.Forbidden):
        await served.coordinator.handle(
            served.keys["ann"], calls.JOIN.name, header, (memoryview(lease),)
        )


async def test_worker__seal_forged_or_with_an_item_missing__is_refused_and_changes_nothing(
    tmp_path: Path, served: Served
) -> None:
    swarm = MemorySwarm(served.swarm.papers, tmp_path / "honest")
    await swarm.run()
    items = swarm.items()
    end = next(i for i, item in enumerate(items) if messages_of([item], Seal))
    first = [encode_kept(item) for item in items[2 : end + 1]]  # after spec and opening
    before = served.snapshot()

    for wrong in (first[:-2] + first[-1:], first[1:], first[:-1], forged_seal(first)):
        with pytest.raises(
            (errors.InvalidSeal, errors.Malformed, errors.Conflict, errors.BadSignature)
        ):
            await handle_worker(served, calls.TAKE_SEAL, wrong)

    assert served.snapshot() == before


def forged_seal(items: list[bytes]) -> list[bytes]:
    """The same step under a seal that somebody else signed."""
    seal = decode_kept(items[-1])
    assert isinstance(seal, Signed)
    other: Session = STRANGER
    signature = other.private_key.sign(seal.message.digest()) + b"\x1b"
    return [*items[:-1], encode_kept(Signed(seal.message, signature))]
