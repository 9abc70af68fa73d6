"""Do the demo's figures follow from a made-up history, and from made-up lines?"""

from collections import Counter
from typing import Any

import pytest

from contracts.terms.ids import PeerId
from contracts.terms.items import ItemNumber, count
from contracts.terms.moments import UnixMillis
from tallystick.demo.shares import JobWork, Loss, loss_of, read_work, shares
from tests.support.checked_history import CheckedMaker
from tests.support.dockets import begin_checked
from tests.support.history import (
    DOMAIN,
    JobMaker,
    Member,
    claims_in,
    make_members,
    make_session,
    make_wallet,
)

MEMBERS = make_members(("ann", "bob", "cem"), stages=2)
"""ann and cem in stage 0, bob in stage 1; four units a step in one chunk."""
ANN, BOB, CEM = (member.wallet.account for member in MEMBERS)
EVE = make_wallet("eve").account
SAME = {account: 1.0 for account in (ANN, BOB, CEM, EVE)}
SPEC = {"units_per_step": 4, "chunks": 1}


class Skipping(JobMaker):
    """Nobody does item 4."""

    def items_of(self, member: Member) -> tuple[ItemNumber, ...]:
        """See `JobMaker.items_of`."""
        return tuple(each for each in super().items_of(member) if each != 4)


def _worked() -> JobWork:
    """An update, a void round, and an update that lacks an item."""
    job = Skipping(members=MEMBERS, spec_changes=SPEC)
    job.seal_step()
    job.seal_step(update=False)
    job.seal_step()
    return read_work(job.items, DOMAIN)


WORKED = _worked()  # here, because its signatures take more than a unit test may


def _audited() -> tuple[CheckedMaker, JobWork]:
    """Three steps of three peers; the third seal also holds their reports on the first step."""
    job = CheckedMaker(name="audited", members=make_members("abc"), opening_block=1)
    for _ in range(3):
        job.next_seal()
    return job, read_work(job.items, DOMAIN, begin_checked)


AUDITED, AUDITED_WORK = _audited()


def test_read_work__audits_are_paid__counts_only_units_that_were_claimed() -> None:
    claims = claims_in(AUDITED.items, "work")
    claimed = [
        {each.peer: count(each.items) for each in claims if each.round == step}
        for step in (1, 2, 3)
    ]
    paid = Counter(AUDITED.record.pay.earned)
    worked = Counter[PeerId]()
    for step in AUDITED_WORK.steps:
        worked.update(step)

    assert list(AUDITED_WORK.steps) == claimed
    assert paid.total() > worked.total() * AUDITED.spec.item_flops[0]
    assert AUDITED_WORK.lost == 0


def test_read_work__sealed_steps__counts_units_by_peer() -> None:
    ann, bob, cem = (member.session.peer for member in MEMBERS)

    assert WORKED.steps == ({ann: 2, bob: 4, cem: 2}, {}, {ann: 1, bob: 3, cem: 2})
    assert WORKED.num_steps == 2


def test_lost__item_that_later_ones_overtook__is_a_unit_of_each_stage() -> None:
    assert WORKED.lost == 2


def test_shares__two_in_one_stage__have_their_parts_of_it_and_their_pay() -> None:
    rows = shares(WORKED, SAME)

    assert [(row.stage, row.units, row.of_stage) for row in rows] == [
        (0, 4, 7),
        (0, 3, 7),
        (1, 7, 7),
    ]
    assert rows[-1].account == BOB
    assert {row.account: row.pay for row in rows} == {
        account: leaf.earned for account, leaf in WORKED.pay.items()
    }
    assert set(WORKED.pay) == {ANN, BOB, CEM}


def test_shares__one_is_three_times_slower__speed_alone_gives_it_a_quarter() -> None:
    rows = shares(WORKED, {ANN: 3.0, BOB: 2.0, CEM: 1.0})

    by_speed = {row.account: row.by_speed for row in rows}
    assert by_speed == pytest.approx({ANN: 1.75, BOB: 7.0, CEM: 5.25})


VICTIM = make_session("victim").peer


def line(at: int, event: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "process": "coordinator", "event": event, **fields}


def failed(at: int, item: int, peer: str = VICTIM.hex()) -> dict[str, Any]:
    return line(at, "item_failed", step=2, stage=1, item=item, peer=peer)


def test_loss_of__seal_after_the_kill__counts_what_happened_between() -> None:
    lines = [
        line(900, "seal_stored", step=1),
        failed(950, 7),  # before it was killed
        failed(1100, 1),
        failed(1150, 1),  # the same item once more
        failed(1200, 2),
        failed(1250, 3, peer="another"),
        line(1300, "reopened", step=2, items=4),
        line(3500, "seal_stored", step=2),
        line(3600, "reopened", step=3, items=9),
    ]

    assert loss_of(VICTIM, UnixMillis(1000), lines) == Loss(2.5, rerouted=2, redone=4)
