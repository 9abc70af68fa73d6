"""A poster pauses, resumes and cancels a job that trains, whoever is killed meanwhile.

A wish is scripted as (who tells, event, step) -> what is wanted from then on, so it comes in its
window. A job that was paused ends with the losses, weights and pay of one that never was.
"""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from contracts.terms.messages import MILLION, Notice
from contracts.terms.work import RoundClosed
from tests.faults.test_memory_swarm import UNITS, assert_as_plain, assert_paid, swarm_of
from tests.support.dockets import audit_spec
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import (
    COORDINATOR,
    Line,
    MemorySwarm,
    When,
    make_papers,
    patient_rules,
)
from training.coordinator.ports import Wish

PAUSE, RESUME, CANCEL = Wish(1, "paused"), Wish(2, "running"), Wish(3, "cancelled")
THREE = ("ann", "bob", "cem")


async def heeded(swarm: MemorySwarm, wish: Wish) -> None:
    """Wait until the coordinator has said that the job is as wanted."""
    while swarm.wishes.number != wish.number:
        await asyncio.sleep(0.01)


def worked(swarm: MemorySwarm) -> int:
    """Rounds that were closed."""
    return len(swarm.messages(RoundClosed))


def stays(swarm: MemorySwarm) -> tuple[int, int]:
    """What grows while a job works."""
    return len(swarm.lines("seal_stored", of=COORDINATOR)), len(swarm.lines("item_done"))


async def resumed_later(swarm: MemorySwarm, *victims: str) -> None:
    """Resume a job some time after it was paused, and after these were killed and came back."""
    await heeded(swarm, PAUSE)
    before = stays(swarm)
    for name in victims:
        restarts = swarm.restarts
        swarm.kill(name)
        while swarm.restarts == restarts:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    assert stays(swarm) == before
    swarm.wishes.wish = RESUME


async def test_pause__in_the_middle_and_everybody_dies__ends_as_if_it_never_was(
    tmp_path: Path,
) -> None:
    swarm, victims = swarm_of(tmp_path, *THREE), ("ann", COORDINATOR, "bob")
    swarm.wished[COORDINATOR, "claim_stored", 2] = PAUSE

    await asyncio.gather(swarm.run(), resumed_later(swarm, *victims))

    assert_as_plain(swarm)
    assert swarm.restarts == len(victims)
    assert [line["wanted"] for line in swarm.lines("wish", of=COORDINATOR)] == ["paused", "running"]


async def test_pause__wanted_before_the_coordinator_started__begins_no_round(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    swarm.wishes.wish = PAUSE

    await asyncio.gather(swarm.run(), resumed_later(swarm))

    assert_as_plain(swarm)
    assert len(swarm.lines("peer_joined")) == 2


def assert_ended_after(swarm: MemorySwarm, steps: int) -> None:
    """All work of the first steps is paid, and nothing else; the rest of the losses never came."""
    spec = swarm.papers.spec.message
    plain = plain_run(spec).losses
    assert swarm.losses() == {step: plain[step] for step in range(1, steps + 1)}
    last = swarm.seals()[-1]
    assert last.last and last.vested == last.earned
    flops = sum(spec.item_flops) * UNITS * steps
    prices = [member.price for member in swarm.papers.members.values()]
    assert flops * min(prices) // 10**15 - len(prices) <= last.earned
    assert last.earned <= flops * max(prices) // 10**15
    assert swarm.history().newest is not None  # as members and audit derive it


async def test_cancel__in_a_step_and_a_kill__that_step_is_done_and_paid_and_is_the_last(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, *THREE)
    swarm.wished[COORDINATOR, "claim_stored", 2] = CANCEL
    swarm.deadly[COORDINATOR, "wish", 2] = COORDINATOR

    await swarm.run()

    assert_ended_after(swarm, 2)
    assert swarm.restarts == 1


async def test_cancel__in_a_pause__ends_at_once(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, *THREE)
    swarm.wished[COORDINATOR, "claim_stored", 2] = PAUSE

    async def cancelled() -> None:
        await heeded(swarm, PAUSE)
        swarm.kill(COORDINATOR)
        swarm.wishes.wish = CANCEL

    await asyncio.gather(swarm.run(), cancelled())

    assert_ended_after(swarm, 2)
    assert worked(swarm) == 2


def checked_swarm(folder: Path, *workers: str) -> MemorySwarm:
    """A job of four steps, all of which is drawn."""
    audit = audit_spec(sums=MILLION, deadline=4)
    return MemorySwarm(make_papers(*workers, audit=audit, steps=4), folder, together=True)


async def test_cancel__nobody_ever_came__a_last_seal_that_earned_nothing(tmp_path: Path) -> None:
    swarm = checked_swarm(tmp_path, "ann")
    swarm.late["ann"] = (COORDINATOR, "never", 0)
    swarm.wishes.wish = CANCEL

    running = asyncio.ensure_future(swarm.run())
    while not swarm.lines("finished", of=COORDINATOR):
        await asyncio.sleep(0.01)
    await swarm.parties[COORDINATOR].task
    running.cancel()  # ann looks for a coordinator that is gone
    with suppress(asyncio.CancelledError):
        await running

    *_, seal = swarm.seals()
    assert seal.last and seal.earned == 0 and not worked(swarm)
    history = swarm.history()
    assert history.record is not None and history.record.ended


def assert_audited(swarm: MemorySwarm, steps: int) -> None:
    """So many steps had work; every draw is settled, nobody was called late, and all are paid."""
    docket, history = swarm.docket(), swarm.history()
    assert docket.is_clear and not docket.convicts
    assert len({claim.round for claim in swarm.claims()}) == steps
    assert {each.what for each in swarm.messages(Notice)} == {"join"}
    assert history.newest is not None and history.newest.seal.message.last
    assert history.newest.seal.message.vested == history.newest.seal.message.earned > 0


async def test_pause__checked_job__its_draws_go_on_in_empty_steps_and_all_steps_follow(
    tmp_path: Path,
) -> None:
    swarm = checked_swarm(tmp_path, *THREE)
    swarm.wished[COORDINATOR, "claim_stored", 2] = PAUSE

    async def resumed() -> None:
        await heeded(swarm, PAUSE)
        while not swarm.docket().is_clear:
            await asyncio.sleep(0.2)  # it folds the whole history
        before = worked(swarm)
        await asyncio.sleep(0.3)
        assert worked(swarm) == before == 2
        swarm.kill(COORDINATOR)
        swarm.wishes.wish = RESUME

    await asyncio.gather(swarm.run(), resumed())

    assert_audited(swarm, 4)


async def test_cancel__checked_job__what_was_done_is_audited_and_paid(tmp_path: Path) -> None:
    swarm = checked_swarm(tmp_path, *THREE)
    swarm.wished[COORDINATOR, "claim_stored", 2] = CANCEL

    await swarm.run()

    assert_audited(swarm, 2)


BEFORE_IT_CLAIMS = ("bob", "seal_applied", 2)
ITS_CLAIM_UNHEARD = (COORDINATOR, "claim_stored", 3)
"""bob has stored a claim of his own, too, or is about to, and nobody has it."""


@pytest.mark.parametrize("moment", [BEFORE_IT_CLAIMS, ITS_CLAIM_UNHEARD], ids=["works", "claims"])
async def test_standstill__who_has_a_stage_s_state_is_away__poster_is_told_until_it_is_back(
    tmp_path: Path, moment: When
) -> None:
    swarm = swarm_of(tmp_path, *THREE, stages=3, rules=patient_rules(lease_grace=1000))
    swarm.in_order = True
    swarm.deadly = {moment: "bob"}
    swarm.watch = partial(stay_away, swarm, "bob", (COORDINATOR, "stands_still", 3))

    await swarm.run()

    plain = plain_run(swarm.papers.spec.message)
    assert swarm.state_roots() == [{root} for root in plain.states]
    assert [*swarm.losses().values()] == [*plain.losses.values()]  # one round may be void
    assert_paid(swarm)
    empty, why, over = swarm.wishes.why
    assert (empty, over) == ("", "") and "weights of stage 1;" in why


def stay_away(
    swarm: MemorySwarm, who: str, until: tuple[str, str, int], name: str, line: Line
) -> None:
    """Once a party works, its next start waits for a line."""
    if name == who and line["event"] == "claim_stored" and line["step"] == 2:
        swarm.late[who] = until
