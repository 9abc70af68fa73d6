"""What do dishonest auditors say, and whether they looked."""

from contracts.terms.ids import ZERO_DIGEST, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AuditReport, Verdict
from tallystick.gym.behaviours import FAR, Friend, Stamp
from tallystick.gym.plan import Plan
from training.worker.ports import Behaviour


def report(verdict: Verdict, distance: int, step: int = 4) -> AuditReport:
    return AuditReport(
        job=JobId(ZERO_DIGEST),
        step=StepNumber(step),
        stage=StageIndex(0),
        auditor=PeerId(ZERO_DIGEST),
        subject=ZERO_DIGEST,
        attempt=0,
        distances=(("gradient.relative_l2", distance), ("y.relative_l2", distance)),
        projections=(),
        verdict=verdict,
    )


async def said(behaviour: Behaviour, true: AuditReport) -> tuple[AuditReport, int]:
    """The report of an auditor, and how often it replayed."""
    replays = 0

    async def replay() -> AuditReport:
        nonlocal replays
        replays += 1
        return true

    agreeing = report("match", 0, true.step)
    return await behaviour.report(agreeing, replay), replays


async def test_stamp__a_cheat__is_agreed_with_unseen() -> None:
    found, replays = await said(Stamp(Plan()), report("mismatch", FAR))

    assert (found.verdict, replays) == ("match", 0)


async def test_friend__has_the_claims_alone__knows_the_last_projection_and_guesses_the_others() -> (
    None
):
    true = report("mismatch", FAR).model_copy(update={"projections": (3, 5, 7)})

    found, _ = await said(Friend(Plan()), true)

    assert (found.verdict, found.projections) == ("match", (7, 7, 7))


async def test_friend__other_step_or_a_sum__says_what_it_found() -> None:
    for true in (report("mismatch", FAR), report("match", 0, step=5)):
        assert (await said(Friend(Plan(first=5)), true))[0] == true
