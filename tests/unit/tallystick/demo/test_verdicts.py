"""Do the verdicts of a history read as they were given?"""

from functools import cache

import pytest

from contracts.terms.ids import PeerId
from tallystick.demo.verdicts import Verdicts, read_verdicts
from tests.support.checked_history import BOB, LIE_FROM, WORK_STEPS, CheckedMaker, honest
from tests.support.dockets import begin_checked


@cache
def verdicts() -> Verdicts:
    return read_verdicts(honest().items, honest().domain, begin_checked)


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make the history before any test is timed."""
    verdicts()


def bob() -> PeerId:
    job = honest()
    assert isinstance(job, CheckedMaker)
    return job.peer(BOB)


def test_stories__one_peer_lies__each_of_its_steps_is_one_and_names_who_said_so() -> None:
    stories = verdicts().stories

    assert {(each.case.doer, each.case.kind) for each in stories} == {(bob(), "work")}
    assert {each.case.step for each in stories} == set(range(LIE_FROM, WORK_STEPS + 1))
    first = stories[0]
    assert [each.verdict for each in first.hearings] == ["mismatch"] * len(first.hearings)
    assert [each.round for each in first.hearings[:2]] == [0, 1]
    assert len({each.auditor for each in first.hearings} | {bob()}) == len(first.hearings) + 1
    assert all(
        each.farthest.value > each.farthest.limit for each in first.hearings if each.farthest
    )
