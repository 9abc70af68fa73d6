"""Parts on their way to who sums them: several at a time, whoever is silent, in the same order."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AverageMember, AverageSet, GradCommit
from contracts.terms.signatures import Signed
from tests.support.pipeline import Pipeline, pipeline
from training.swarm.state import Part
from training.transport import calls
from training.worker.answers import Answers
from training.worker.averages import FETCHES, FETCHES_OF_ONE
from training.worker.book import OwnCommit
from training.worker.patience import Patience

NAMES = ("ann0", "bob0", "cem0", "dan0", "eve0", "fay0")
CHUNKS = (ChunkIndex(0), ChunkIndex(1))
Commits = Mapping[Digest, Signed[GradCommit]]


@pytest.fixture
async def six(tmp_path: Path) -> AsyncIterator[Pipeline]:
    """Six members of one stage, each with a unit that it has computed."""
    async with pipeline(tmp_path, *NAMES) as found:
        for number, name in enumerate(NAMES):
            await found.forward(name, unit=ItemNumber(number))
        yield found


async def committed(swarm: Pipeline) -> dict[Digest, Signed[GradCommit]]:
    """Everybody's GradCommit."""
    units = {name: (number,) for number, name in enumerate(NAMES)}
    close, commits = swarm.close(0, **units), {}
    for work in swarm.works.values():
        own = await work.commits.commit(close)
        assert isinstance(own[0], OwnCommit)
        commits[own[0].signed.message.digest()] = own[0].signed
    return commits


def wanted(swarm: Pipeline, commits: Commits) -> list[Part]:
    """All parts but Ann's own."""
    ann = swarm.peer("ann0")
    others = [name for name, each in commits.items() if each.message.peer != ann]
    return [(name, chunk) for name in others for chunk in CHUNKS]


class Fetching:
    """Holds up the parts of some peers, and counts how many are on their way."""

    def __init__(self, swarm: Pipeline, *silent: str) -> None:
        self._peers = swarm.works["ann0"].station.peers
        self._fetch = self._peers.fetch_part
        self._peers.fetch_part = self  # type: ignore[method-assign]  # counts calls
        self._silent = {swarm.peer(name) for name in silent}
        self._now: list[PeerId] = []
        self.most, self.most_of_one = 0, 0

    async def __call__(
        self, commit: GradCommit, chunk: ChunkIndex, patience: Patience | None = None
    ) -> bytes:
        """See `Peers.fetch_part`."""
        self._now.append(commit.peer)
        self.most = max(self.most, len(self._now))
        self.most_of_one = max(self.most_of_one, self._now.count(commit.peer))
        try:
            if commit.peer in self._silent:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            return await self._fetch(commit, chunk, patience)
        finally:
            self._now.remove(commit.peer)


async def test_hold__parts_of_many__a_few_are_on_their_way_at_once(six: Pipeline) -> None:
    commits, fetching = await committed(six), Fetching(six)
    parts = wanted(six, commits)

    held = await six.works["ann0"].averages.hold(parts, commits)

    assert held == parts
    assert (fetching.most, fetching.most_of_one) == (FETCHES, FETCHES_OF_ONE)


async def test_sum__parts_come_in_another_order__is_that_of_who_had_them_all(
    six: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = await committed(six)
    average = average_of(six, commits)
    await six.works["bob0"].averages.hold([(name, c) for name in commits for c in CHUNKS], commits)
    fetch, came = six.works["ann0"].station.peers.fetch_part, list[PeerId]()
    order = sorted(each.message.peer for each in commits.values())

    async def last_first(
        commit: GradCommit, chunk: ChunkIndex, patience: Patience | None = None
    ) -> bytes:
        data = await fetch(commit, chunk, patience)
        for _ in range(1000 * (len(order) - order.index(commit.peer))):
            await asyncio.sleep(0)
        came.append(commit.peer)
        return data

    monkeypatch.setattr(six.works["ann0"].station.peers, "fetch_part", last_first)
    (ann,) = await six.works["ann0"].averages.average(average, commits, CHUNKS[:1])
    (bob,) = await six.works["bob0"].averages.average(average, commits, CHUNKS[:1])

    assert ann.message.chunk_digest == bob.message.chunk_digest
    assert came != sorted(came)


def average_of(swarm: Pipeline, commits: Commits) -> Signed[AverageSet]:
    """Of all of them, with unequal weights."""
    (any_commit, *_) = commits.values()
    members = tuple(
        AverageMember(grad_commit=name, weight=number)
        for number, name in enumerate(sorted(commits), start=1)
    )
    return swarm.papers.session.sign(
        AverageSet(
            job=swarm.papers.job,
            step=any_commit.message.step,
            step_close=any_commit.message.step_close,
            members=members,
        )
    )


async def test_part__half_of_it_is_on_disk__is_fetched_again(six: Pipeline) -> None:
    commits = await committed(six)
    parts, averages = wanted(six, commits)[:1], six.works["ann0"].averages
    await averages.hold(parts, commits)
    ((name, chunk),) = parts
    (path,) = six.works["ann0"].station.folder.glob(f"parts/*/{name.hex()}-{chunk:04d}.bin")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])

    assert await averages.hold(parts, commits) == parts
    assert path.read_bytes() == whole


async def test_sum__a_member_that_is_silent__is_unavailable_and_binds_nothing(
    six: Pipeline,
) -> None:
    commits = await committed(six)
    await six.transports["bob0"].close()

    with pytest.raises(Unavailable):
        await six.works["ann0"].averages.average(average_of(six, commits), commits, CHUNKS)

    assert six.works["ann0"].book.chunks == {}


async def test_sum__a_member_is_gone_since_its_parts_came__who_takes_over_sums_them(
    six: Pipeline,
) -> None:
    commits = await committed(six)
    average = average_of(six, commits)
    await six.works["ann0"].averages.hold(wanted(six, commits), commits)
    left = tuple(
        calls.MemberView(session_key=each.session.key, stage=StageIndex(0), address="")
        for name, each in six.papers.members.items()
        if name != "bob0"
    )

    _, chunks = await Answers(six.works["ann0"]).sum_chunks(
        six.papers.session.key,
        calls.SumChunks(members=left, chunks=CHUNKS),
        tuple(memoryview(each.encoded()) for each in (average, *commits.values())),
    )

    assert len(chunks) == len(CHUNKS)


async def test_part__of_ours_finds_no_room_on_disk__its_units_are_not_bound_but_lacked(
    six: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = six.works["ann0"].station

    def full(*_: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(station.store, "bind_parts", full)

    lacked = await six.works["ann0"].commits.commit(six.close(0, ann0=(0,)))

    assert lacked == (0,), "others are to do it"
    assert station.book.commits == []
    assert six.works["ann0"].units.complete() == frozenset()


async def test_worker__papers_of_another_job_of_this_coordinator__are_refused(
    six: Pipeline,
) -> None:
    commits = await committed(six)
    answers, key = Answers(six.works["ann0"]), six.papers.session.key
    other = {"job": Digest(bytes(32))}
    average = six.papers.session.sign(average_of(six, commits).message.model_copy(update=other))
    close = six.papers.session.sign(six.close(ann0=(0,)).message.model_copy(update=other))

    with pytest.raises(Conflict, match="another job"):
        await answers.sum_chunks(
            key,
            calls.SumChunks(members=(), chunks=CHUNKS),
            tuple(memoryview(each.encoded()) for each in (average, *commits.values())),
        )
    with pytest.raises(Conflict, match="another job"):
        await answers.close_step(key, calls.CloseStep(members=()), (memoryview(close.encoded()),))
