"""Whole rounds of a coordinator with members that compute nothing: who is asked for what, when."""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Conflict
from contracts.terms.work import RoundClosed
from tests.support.fake_members import FakeJob
from tests.support.history import make_digest
from tests.support.papers import make_papers

NAMES = ("ann", "bob", "cem", "dan")
QUICK = {"commit_timeout": 1000, "exchange_timeout": 1000, "redo_after": 500, "lease_grace": 30_000}

pytestmark = pytest.mark.simulated_time


def make_job(folder: Path, *names: str, **changed: Any) -> FakeJob:
    """A job of two stages and two rounds, unless `changed` says otherwise."""
    usual: dict[str, Any] = {"stages": 2, "steps": 2, "units_per_step": 8, "chunks": 2}
    return FakeJob(make_papers(*(names or NAMES), **(usual | QUICK | changed)), folder)


async def test_job__honest_members__seals_all_items_and_ends(tmp_path: Path) -> None:
    async with make_job(tmp_path).running() as job:
        assert job.task is not None
        await job.task

        assert [seal.last for seal in job.seals()] == [False, True]
        assert job.seals()[-1].next == 16
        assert job.seals()[-1].unsealed == ()
        assert all(member.seals == 2 for member in job.members.values())


async def test_job__one_claims_nothing__others_do_its_items_after_commit_ms(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path)
    job.members["ann"].moods = {"mute"}
    async with job.running():
        await job.until_told("seal_applied")

        assert job.told("claim_stored", seq=1, stage=job.members["ann"].group)
        assert job.seals_known()[0].next == 8
        assert set(job.members["ann"].early) == {4}  # when nobody may claim in this round any more


@pytest.mark.parametrize("mood", ["lying", "keeping", "false"])
async def test_job__junk_from_one__costs_it_its_round_alone(tmp_path: Path, mood: str) -> None:
    job = make_job(tmp_path)
    ann = job.members["ann"]
    ann.moods = {mood}
    async with job.running():
        await job.until_told("seal_applied")

        closed = next(m for _, m in job.members["bob"].heard if isinstance(m, RoundClosed))
        own = {signed.message.digest() for signed, _ in ann.claimed}
        assert own and own.isdisjoint(closed.weights)
        assert job.seals_known()[0].next == 8


async def test_job__reducer_does_nothing__next_one_is_asked(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.members["ann"].moods = {"idle"}
    async with job.running():
        await job.until_told("seal_applied")

        assert not job.told("bucket_stored", peer=job.members["ann"].peer)
        assert len(job.told("bucket_stored", step=1)) == 4
        assert job.seals_known()[0].updates == 1


@pytest.mark.parametrize(
    "event", ["item_forward", "item_done", "claim_stored", "shard_stored", "round_closed"]
)
async def test_job__coordinator_starts_again__goes_on_with_what_is_stored(
    tmp_path: Path, event: str
) -> None:
    job = make_job(tmp_path)
    await job.start()
    members = [*job.members.values()]
    try:
        for member in members:
            await member.come()
        await job.until_told(event)
        await job.stop()
        for member in members:
            await member.go()
        claims = len(job.told("claim_stored"))
        await job.start()
        for member in members:
            await member.come()
        assert job.task is not None
        await job.task

        assert job.seals()[-1].next == 16
        assert len(job.told("claim_stored")) == max(8, claims)
    finally:
        for member in members:
            await member.go()
        await job.stop()


async def test_job__reducer_denies_that_it_has_shards__coordinator_keeps_them(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path)
    ann, bob = job.members["ann"], job.members["bob"]
    ann.moods = {"deaf"}
    async with job.running():
        await job.until_told("claim_stored", peer=bob.peer)
        shard = bob.claimed[0][0].message.outputs[0].digest
        with pytest.raises(Conflict, match="before RoundClosed"):
            await ann.get(shard)
        await job.until_told("round_closed")

        assert job.told("bytes_kept")
        assert await ann.get(shard) == bob.own[shard]
        with pytest.raises(Conflict, match="nobody asks"):
            await ann.get(make_digest("a tensor"))
        await job.until_told("seal_applied")
        closed = next(m for _, m in bob.heard if isinstance(m, RoundClosed))
        assert len(closed.claims) == 4


async def test_job__member_vanishes_with_its_results__others_do_them(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    ann = job.members["ann"]
    ann.moods = {"mute"}
    async with job.running():
        await job.until_told("item_done", peer=ann.peer)
        await ann.go()
        await job.until_told("seal_applied")

        assert job.seals_known()[0].next == 8
        given = [
            leaf
            for member in job.members.values()
            for signed, leaves in member.claimed
            for leaf in leaves.leaves
        ]
        assert len(given) == 16
