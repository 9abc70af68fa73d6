"""What do dishonest auditors say, and whether they looked."""

from contracts.terms.work import Findings
from tallystick.gym.behaviours import FAR, Friend, Stamp
from tallystick.gym.plan import Plan
from tests.support.history import JobMaker
from training.worker.ports import Behaviour

MAKER = JobMaker()
CLAIM, _ = MAKER.claim(MAKER.members[0])
FALSE = Findings("mismatch", (FAR, FAR), (3, 5, 7))
TRUE = Findings("match", (0, 0))


async def said(behaviour: Behaviour, true: Findings, step: int = 4) -> tuple[Findings, int]:
    """What an auditor reports, and how often it replayed."""
    replays = 0

    async def replay() -> Findings:
        nonlocal replays
        replays += 1
        return true

    about = CLAIM.model_copy(update={"round": step})
    return await behaviour.report(about, TRUE, replay), replays


async def test_stamp__a_cheat__is_agreed_with_unseen() -> None:
    assert await said(Stamp(Plan()), FALSE) == (TRUE, 0)


async def test_friend__has_the_claims_alone__knows_the_last_projection_and_guesses_the_others() -> (
    None
):
    found, _ = await said(Friend(Plan()), FALSE)

    assert (found.verdict, found.projections) == ("match", (7, 7, 7))


async def test_friend__other_step_or_a_bucket__says_what_it_found() -> None:
    for true, step in ((FALSE, 4), (TRUE, 5)):
        assert (await said(Friend(Plan(first=5)), true, step))[0] == true
