"""Do the demo's figures follow from a made-up history, and from made-up lines?"""

from collections import Counter
from typing import Any

from contracts.terms.ids import PeerId
from contracts.terms.messages import GradCommit
from contracts.terms.moments import UnixMillis
from tallystick.demo.shares import JobWork, Loss, loss_of, read_work, shares
from tests.support.checked_history import CheckedMaker
from tests.support.checked_swarm import begin_checked
from tests.support.history import (
    DOMAIN,
    JobMaker,
    make_members,
    make_session,
    make_wallet,
    messages_of,
)

MEMBERS = make_members(("ann", "bob", "cem"), stages=2)
"""ann and cem in stage 0, bob in stage 1; four units a step in one chunk."""
ANN, BOB, CEM = (member.wallet.account for member in MEMBERS)
EVE = make_wallet("eve").account
SAME = {account: 1.0 for account in (ANN, BOB, CEM, EVE)}
SPEC = {"units_per_step": 4, "chunks": 1}


def _worked() -> JobWork:
    """A step, one that ended without an update, and one that nobody worked in."""
    job = JobMaker(members=MEMBERS, spec_changes=SPEC)
    job.seal_step()
    job.seal_step(update=False)
    job.seal([])
    return read_work(job.items, DOMAIN)


WORKED = _worked()  # here, because its signatures take more than a unit test may


def _audited() -> tuple[CheckedMaker, JobWork]:
    """Three steps of three peers; the third seal also holds their reports on the first step."""
    job = CheckedMaker(name="audited", members=make_members("abc"), opening_block=1)
    for _ in range(3):
        job.next_seal()
    return job, read_work(job.items, DOMAIN, begin_checked)


AUDITED, AUDITED_WORK = _audited()


def test_read_work__audits_are_paid__counts_only_units_that_were_committed_to() -> None:
    committed = [
        {each.peer: each.num_units for each in commits_of(AUDITED, step)} for step in (1, 2, 3)
    ]
    paid = Counter(AUDITED.record.pay.earned)
    worked = Counter[PeerId]()
    for step in AUDITED_WORK.steps:
        worked.update(step)

    assert list(AUDITED_WORK.steps) == committed
    assert paid.total() > worked.total() * AUDITED.spec.item_flops[0]
    assert AUDITED_WORK.lost == 0


def commits_of(job: CheckedMaker, step: int) -> list[GradCommit]:
    return [each for each in messages_of(job.items, GradCommit) if each.step == step]


def test_read_work__sealed_steps__counts_units_by_peer() -> None:
    ann, bob, cem = (member.session.peer for member in MEMBERS)

    assert WORKED.steps == ({ann: 2, bob: 4, cem: 2}, {ann: 2, bob: 4, cem: 2}, {})


def test_lost__step_that_nobody_worked_in__is_all_its_units_in_all_stages() -> None:
    assert WORKED.lost == 4 * 2


def test_shares__two_in_one_stage__have_half_of_it_and_their_pay() -> None:
    rows = shares(WORKED, SAME)

    assert [(row.stage, row.units, row.of_stage) for row in rows] == [
        (0, 4, 8),
        (0, 4, 8),
        (1, 8, 8),
    ]
    assert rows[-1].account == BOB
    assert {row.account: row.pay for row in rows} == {
        account: leaf.earned for account, leaf in WORKED.pay.items()
    }
    assert set(WORKED.pay) == {ANN, BOB, CEM}


def test_shares__one_is_three_times_slower__speed_alone_gives_it_a_quarter() -> None:
    rows = shares(WORKED, {ANN: 3.0, BOB: 2.0, CEM: 1.0})

    assert {row.account: row.by_speed for row in rows} == {ANN: 2.0, BOB: 8.0, CEM: 6.0}


VICTIM = make_session("victim").peer


def line(at: int, event: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "process": "coordinator", "event": event, **fields}


def failed(at: int, unit: int, peer: str = VICTIM.hex()) -> dict[str, Any]:
    return line(at, "unit_failed", step=2, stage=1, unit=unit, peer=peer)


def test_loss_of__seal_after_the_kill__counts_what_happened_between() -> None:
    lines = [
        line(900, "seal_stored", step=1),
        failed(950, 7),  # before it was killed
        failed(1100, 1),
        failed(1150, 1),  # the same unit once more
        failed(1200, 2),
        failed(1250, 3, peer="another"),
        line(1300, "redo", step=2, units=4),
        line(3500, "seal_stored", step=2),
        line(3600, "redo", step=3, units=9),
    ]

    assert loss_of(VICTIM, UnixMillis(1000), lines) == Loss(2.5, rerouted=2, redone=4)
