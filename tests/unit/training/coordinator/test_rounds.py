"""Whole rounds of a coordinator with members that compute nothing: who is asked for what, when."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_members import FakeJob
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
