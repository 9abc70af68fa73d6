"""Blobs that nothing names go and give their bytes back; one that is named never does."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, ServiceUnreachable
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId, PeerId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.limits import BLOCK, charged
from market.service import collect_blobs as collecting
from market.service import post_job as posting
from market.service.collect_blobs import Collected, collect_blobs
from market.service.named_blobs import Spans, name_blobs
from market.service.pass_time import pass_deadlines
from market.service.ports import UnitOfWork
from market.service.rows import (
    BlobNameRow,
    BlobOwnerRow,
    BlobPartRow,
    BlobUseRow,
    CheckpointRow,
    EvidenceRow,
    JobRow,
    SlashRow,
)
from market.service.store_blob import EVERYBODY, Upload, store_blob
from market.worker import tasks
from tests.support.databases import Database
from tests.support.examples import examples
from tests.support.history import make_wallet
from tests.support.market_world import CORPUS, World, market_spec, one_chunk
from tests.support.weights import in_parts

ANN, EVE = make_wallet("ann").account, make_wallet("eve").account
DAY = 86_400
SPANS = Spans()


async def put(world: World, data: bytes, by: Address = ANN) -> Digest:
    """As the route does."""
    upload = Upload(by, blob_digest(data), len(data))
    await store_blob(
        upload,
        one_chunk(data),
        now=world.now,
        bounds=world.blob_bounds,
        work=world.new_work(),
        blobs=world.blobs,
        uploads=world.uploads,
    )
    return upload.name


async def collect(world: World, work: UnitOfWork | None = None) -> Collected:
    return await collect_blobs(
        ZERO_DIGEST, SPANS, now=world.now, work=work or world.new_work(), blobs=world.blobs
    )


async def check_charges(world: World) -> None:
    """Everybody is charged for what he owns, which is here."""
    async with world.new_reading() as work:
        owned = await work[BlobOwnerRow].where()
        uses = {row.account: row.num_bytes for row in await work[BlobUseRow].where()}
    for account in (ANN, EVE):
        mine = [row.num_bytes for row in owned if row.account == account]
        assert uses.get(account, 0) == sum(mine)
    assert uses.get(EVERYBODY, 0) == sum(row.num_bytes for row in owned)
    assert all(charged(len(world.blobs.blobs[row.blob])) == row.num_bytes for row in owned)


@pytest.fixture(autouse=True)
def clock(world: World) -> None:
    """Blobs are stored by the market's clock; all that is there was just stored."""
    world.blobs.now = lambda: world.now
    world.blobs.stored_at = dict.fromkeys(world.blobs.blobs, world.now)


class Between:
    """A unit of work; before its transaction of this number something else happens."""

    def __init__(
        self, work: UnitOfWork, number: int, happens: Callable[[], Awaitable[Any]]
    ) -> None:
        self._work, self._left, self._happens = work, number, happens

    async def __aenter__(self) -> UnitOfWork:
        self._left -= 1
        if self._left == 0:
            await self._happens()
        return await self._work.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._work.__aexit__(*error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._work, name)

    def __getitem__(self, cls: type) -> object:
        return self._work[cls]


DELETES = 4
"""The transaction of a run that deletes; the one before takes blobs from their owners."""


def between(world: World, happens: Callable[[], Awaitable[Any]]) -> UnitOfWork:
    """A run's work, in which something happens before it deletes."""
    return Between(world.new_work(), DELETES, happens)  # type: ignore[return-value]  # the rest is its own


# --------------------------------------------------------------------------------------- what stays


async def test_collect__stored_and_named_by_nobody__goes_after_its_span_and_gives_bytes_back(
    world: World,
) -> None:
    old = await put(world, b"old")
    world.wait(6 * DAY)
    young = await put(world, b"young", EVE)
    assert (await collect(world)).removed == 0
    world.wait(DAY)
    world.blobs.stored_at |= dict.fromkeys(CORPUS, world.now)

    done = await collect(world)

    assert (done.removed, done.given_back) == (1, BLOCK)
    assert old not in world.blobs.blobs and young in world.blobs.blobs
    await check_charges(world)


@pytest.mark.parametrize(("seals", "days"), [(0, 7), (1, 30)])
async def test_collect__job_posted__keeps_its_whole_corpus_until_its_end_is_long_ago(
    world: World, seals: int, days: int
) -> None:
    maker = await world.start_job()
    if seals:
        await world.seal(maker)
    world.wait(100 * DAY)
    assert (await collect(world)).removed == 0
    world.wait(maker.spec.deadline + 1800 - world.now // 1000)
    await world.tick()
    assert (await world.job(maker.spec.job())).state == "failed"
    world.wait(days * DAY - 60)
    assert (await collect(world)).removed == 0
    world.wait(120)

    assert (await collect(world)).removed == len(CORPUS)
    assert not world.blobs.blobs and await world.rows(BlobPartRow) == []


async def test_collect__job_that_was_never_paid_for__keeps_nothing(world: World) -> None:
    await world.register()
    row = await world.post(market_spec())
    world.wait(max(8 * DAY, row.deadline - world.now // 1000))
    assert (await collect(world)).removed == 0
    assert await pass_deadlines(world.now, world.new_work()) == 1

    assert (await collect(world)).removed == len(CORPUS)


async def test_collect__checkpoint_is_claimed__its_parts_stay_until_a_newer_one(
    world: World,
) -> None:
    maker = await world.start_job()
    await world.seal(maker)
    (member,) = maker.members
    row = CheckpointRow(maker.spec.job(), member.session.peer, 0, 1, ZERO_DIGEST, None, "")
    indexes = []
    for number in (1, 2):
        index, blobs = in_parts(bytes([number]) * 100, 30)
        indexes.append(index)
        for data in blobs.values():
            await put(world, data)
        async with world.new_work() as work:  # parts that come after the claim, in silence
            await work[CheckpointRow].put(replace(row, blob=index))
        world.wait(8 * DAY)
        await collect(world)
        assert index in world.blobs.blobs
        assert set(blobs) <= set(world.blobs.blobs)

    assert indexes[0] not in world.blobs.blobs
    assert {each.whole for each in await world.rows(BlobPartRow)} & set(indexes) == {indexes[1]}
    await check_charges(world)


async def test_collect__evidence_and_answer__stay_for_good(world: World) -> None:
    bundle, answer = await put(world, b"bundle"), await put(world, b"answer")
    job = JobId(b"j" * 32)
    async with world.new_work() as work:
        await work[EvidenceRow].add(
            EvidenceRow(job, Digest(b"s" * 32), PeerId(b"p" * 32), bundle, 0)
        )
        slash = SlashRow(bundle, job, ANN, BaseUnits(1), world.now, answer=answer)
        await work[SlashRow].add(slash)
    world.wait(1000 * DAY)
    await collect(world)

    assert set(world.blobs.blobs) == {bundle, answer}


async def test_collect__more_than_a_run_looks_at__the_next_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "A_RUN", 3)
    world.wait(8 * DAY)
    after, removed = ZERO_DIGEST, 0
    for _ in range(2):
        done = await collect_blobs(
            after, SPANS, now=world.now, work=world.new_work(), blobs=world.blobs
        )
        after, removed = done.next, removed + done.removed

    assert (removed, after, len(CORPUS)) == (5, ZERO_DIGEST, 5)


@pytest.mark.parametrize(("at_once", "goes_on"), [(1, [True] * 4 + [False]), (9, [False])])
async def test_collect__store_is_slow__a_run_ends_and_later_ones_delete_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once: int, goes_on: list[bool]
) -> None:
    monkeypatch.setattr(collecting, "AT_ONCE", at_once)
    monkeypatch.setattr(collecting, "SECONDS", -1.0)  # any store is too slow
    world.wait(8 * DAY)
    after, went_on = ZERO_DIGEST, list[bool]()
    for left in range(len(CORPUS) - 1, -1, -1):
        done = await collect_blobs(
            after, SPANS, now=world.now, work=world.new_work(), blobs=world.blobs
        )
        assert done.removed == 1 and len(world.blobs.blobs) == left
        after = done.next
        went_on.append(after != ZERO_DIGEST)

    assert went_on == (goes_on * len(CORPUS))[: len(CORPUS)]


async def test_collect__one_blob_cannot_be_deleted__runs_after_it_begin_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.wait(8 * DAY)
    stuck, *others = sorted(world.blobs.blobs)
    remove = world.blobs.remove

    async def refused(name: Digest) -> None:
        if name == stuck:
            raise ServiceUnreachable("blob store: Access Denied")
        await remove(name)

    monkeypatch.setattr(world.blobs, "remove", refused)
    monkeypatch.setattr(tasks, "anywhere", lambda: stuck)
    market = SimpleNamespace(clock=lambda: world.now, new_work=world.new_work, blobs=world.blobs)
    days = SimpleNamespace(blob_unnamed_days=7, blob_ended_days=30)
    runtime: Any = SimpleNamespace(market=market, settings=days, swept_to=ZERO_DIGEST)
    with pytest.raises(ServiceUnreachable):
        await tasks._collect(runtime)
    await tasks._collect(runtime)

    assert set(world.blobs.blobs) == {stuck} and others


# --------------------------------------------------------------------------------- races, and kills


async def test_post_job__blobs_go_after_they_were_seen__is_refused_and_works_when_they_are_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register()
    world.wait(8 * DAY)
    now = UnixSeconds(world.now // 1000)
    spec = market_spec(open_by=now + 50, deadline=now + 10_000)

    async def late(*given: Any) -> None:
        monkeypatch.undo()
        assert (await collect(world)).removed == len(CORPUS)
        await name_blobs(*given)

    monkeypatch.setattr(posting, "name_blobs", late)
    with pytest.raises(NotFound, match=r"not here any more.*: PUT"):
        await world.post(spec)
    assert await world.rows(JobRow) == []
    for data in CORPUS.values():
        await put(world, data)
    await world.post(spec)
    world.wait(8 * DAY)
    await collect(world)

    assert set(world.blobs.blobs) == set(CORPUS)


async def test_collect__job_posted_before_it_deletes__deletes_nothing_of_it(world: World) -> None:
    await world.register()
    world.wait(8 * DAY)
    now = UnixSeconds(world.now // 1000)
    spec = market_spec(open_by=now + 50, deadline=now + 10_000)

    done = await collect(world, between(world, lambda: world.post(spec)))

    assert done.removed == 0
    assert set(world.blobs.blobs) == set(CORPUS)
    assert len(await world.rows(BlobPartRow)) == 4


async def test_collect__stored_again_before_it_deletes__deletes_nothing_of_it(
    world: World,
) -> None:
    name = await put(world, b"old")
    world.wait(8 * DAY)

    async def again() -> None:
        world.blobs.blobs.pop(name)  # so that it is not taken as here
        await put(world, b"old", EVE)

    await collect(world, between(world, again))

    assert name in world.blobs.blobs
    await check_charges(world)


async def test_collect__posted_at_the_same_time_and_many_runs_at_once__job_and_all_blobs_or_none(
    world: World,
) -> None:
    await world.register()
    world.wait(8 * DAY)
    now = UnixSeconds(world.now // 1000)
    for turn in range(8):
        for data in CORPUS.values():
            await put(world, data)
        world.blobs.stored_at = dict.fromkeys(world.blobs.blobs, UnixMillis(0))
        spec = market_spec(open_by=now + 50, deadline=now + 10_000, salt=turn + 1)

        async def post(spec: JobSpec, turn: int) -> bool:
            await asyncio.sleep(turn / 200)
            try:
                await world.post(spec)
            except NotFound:
                return False
            return True

        is_posted, *_ = await asyncio.gather(post(spec, turn), collect(world), collect(world))

        assert len(await world.rows(JobRow)) == is_posted
        assert set(world.blobs.blobs) == (set(CORPUS) if is_posted else set())
        await check_charges(world)
        async with world.new_work() as work:  # as if there had never been this job
            await work[JobRow].remove(spec.job())
            await work[BlobNameRow].remove(spec.job())


class KilledError(Exception):
    """The process is gone."""


async def test_collect__killed_before_it_deletes__nobody_is_charged_and_a_later_run_deletes(
    world: World,
) -> None:
    async def kill() -> None:
        raise KilledError

    name = await put(world, b"old")
    world.wait(8 * DAY)
    with pytest.raises(KilledError):
        await collect(world, between(world, kill))
    assert name in world.blobs.blobs
    await check_charges(world)

    await collect(world)

    assert world.blobs.blobs == {}


# ------------------------------------------------------------------------- whatever happens at all

BLOBS = tuple(bytes([number]) * (1 + number * BLOCK) for number in range(6))
NAMES = tuple(map(blob_digest, BLOBS))
numbers = st.integers(0, len(BLOBS) - 1)
steps = st.one_of(
    st.tuples(st.just("put"), numbers, st.sampled_from((ANN, EVE))),
    st.tuples(st.just("name"), st.sets(numbers, max_size=2), st.sets(numbers, max_size=3)),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(("draft", "idle", "sealed"))),
    st.tuples(st.just("wait"), st.sampled_from((1, 6, 8, 31))),
    st.tuples(st.just("collect"), st.sampled_from(("whole", "whole", "killed"))),
)


@dataclass
class Named:
    """A job, by what should stay for it."""

    row: JobRow
    blobs: set[Digest]

    def keeps(self, now: UnixMillis) -> bool:
        """Whether they have to be there."""
        if self.row.ended_at is None:
            return True
        days = 30 if self.row.step else 7
        return self.row.ended_at > 0 and now < self.row.ended_at + days * DAY * 1000


@dataclass
class Story:
    """What happens to a market's blobs, and what has to be there."""

    world: World
    jobs: list[Named] = field(default_factory=list)

    async def run(self, step: tuple[Any, ...]) -> None:
        """One more thing happens."""
        match step:
            case "put", number, account:
                await put(self.world, BLOBS[number], account)
            case "name", named, listed:
                await self._name({NAMES[each] for each in named}, {NAMES[each] for each in listed})
            case "end", number, how if number < len(self.jobs):
                await self._end(self.jobs[number], how)
            case "wait", days:
                self.world.wait(days * DAY)
            case "collect", "whole":
                await collect(self.world)
            case "collect", _:
                with suppress(KilledError):  # there may be nothing to delete
                    await collect(self.world, between(self.world, self._kill))
        await self.check()

    async def _kill(self) -> None:
        raise KilledError

    async def _name(self, names: set[Digest], parts: set[Digest]) -> None:
        job = JobId(len(self.jobs).to_bytes(32, "big"))
        row = JobRow(
            job, b"", ANN, ANN, "", BaseUnits(1), UnixSeconds(1), 1, "running", self.world.now,
            b"", UnixSeconds(1),
        )  # fmt: skip
        # A whole lists always the same: another list makes another whole.
        manifest = b"".join(sorted(parts))
        whole = await put(self.world, manifest) if parts else None
        wholes = {} if whole is None else {whole: parts}
        try:
            async with self.world.new_work() as work:
                await work[JobRow].add(row)
                await name_blobs(job, names | set(wholes), wholes, work, self.world.blobs)
        except NotFound as error:
            assert str(error.data["digest"]) not in {each.hex() for each in self.world.blobs.blobs}
        else:
            self.jobs.append(Named(row, names | parts | set(wholes)))

    async def _end(self, job: Named, how: str) -> None:
        if job.row.ended_at is None:
            ended = UnixMillis(0) if how == "draft" else self.world.now
            job.row = replace(job.row, ended_at=ended, step=int(how == "sealed"))
            async with self.world.new_work() as work:
                await work[JobRow].put(job.row)

    async def check(self) -> None:
        """What is named is there, and charges fit."""
        await check_charges(self.world)
        for job in self.jobs:
            if job.keeps(self.world.now):
                assert job.blobs <= set(self.world.blobs.blobs)
            else:
                job.blobs = set()  # once over, what it named may have gone

    async def end(self) -> None:
        """Whatever nothing names has gone, and whoever stored it has his bytes again."""
        self.world.wait(8 * DAY)
        await collect(self.world)
        await self.check()
        kept = [job.blobs for job in self.jobs if job.keeps(self.world.now)]
        assert set(self.world.blobs.blobs) == set().union(*kept)


def test_collect__any_uploads_jobs_waits_and_kills__what_is_named_stays_and_all_else_goes(
    storage: Database,
) -> None:
    async def run(made: list[tuple[Any, ...]]) -> None:
        world = storage.world()
        world.blobs.blobs.clear()
        world.blobs.now = lambda: world.now
        story = Story(world)
        for step in made:
            await story.run(step)
        await story.end()

    with asyncio.Runner() as runner:

        @settings(max_examples=examples(25))
        @given(st.lists(steps, max_size=16))
        def stays_or_goes(made: list[tuple[Any, ...]]) -> None:
            storage.empty()  # of an example that failed, too
            runner.run(run(made))

        stays_or_goes()
        runner.run(storage.disconnect())
