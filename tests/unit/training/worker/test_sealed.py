"""What of sealed work do audits fetch, and who has it?"""

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import StepNumber
from contracts.terms.work import WorkClaim
from tests.support.history import JobMaker, make_digest, make_members
from training.worker.sealed import SealedWork


def noted(job: JobMaker, **how: bool) -> tuple[SealedWork, dict[tuple[str, int], WorkClaim]]:
    """One round of a job, sealed, and its claims by what they are and their stage."""
    work, before = SealedWork(), len(job.items)
    items = job.step_items(**how)
    job.keep(*items)
    under = job.history
    job.seal([])
    assert job.history.newest is not None
    work.note(under, job.history.newest.names)
    messages = [getattr(item, "message", None) for item in job.items[before:]]
    claims = [each for each in messages if isinstance(each, WorkClaim)]
    return work, {(each.what, each.group): each for each in claims}


def test_needed_by__work_and_bucket__tensors_and_parts_but_no_rows() -> None:
    job = JobMaker(members=make_members(stages=3))
    work, claims = noted(job)

    middle = claims["work", 1]
    needed = work.needed_by(middle.digest())

    item = middle.numbers[0]
    names = (f"y/0/{item}", f"y/1/{item}", f"dx/1/{item}", f"dx/2/{item}")
    assert {make_digest(name) for name in names} <= needed.keys()
    assert make_digest(f"rows/1/{item}") not in needed
    parts = {digest for digest, sort in needed.items() if sort == "part"}
    assert parts == {output.digest for output in middle.outputs}
    bucket = claims["bucket", 1]
    assert work.needed_by(bucket.digest()) == {middle.outputs[bucket.bucket].digest: "part"}


def test_note__a_void_round__its_claims_are_not_sealed_and_those_before_are_forgotten() -> None:
    job = JobMaker()
    work, claims = noted(job, update=False)

    with pytest.raises(NotFound):
        work.claim(claims["work", 0].digest())
    work, claims = noted(JobMaker())
    assert work.claim(claims["work", 0].digest()).closed is not None
    work.forget_before(StepNumber(2))
    with pytest.raises(NotFound):
        work.claim(claims["work", 0].digest())
    assert not work.said()
