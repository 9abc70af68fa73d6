"""What trainers are told: their share, who may be given it, news, and validation."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from contracts.governance.checking import Begin, unread
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from tests.support.dockets import audit_spec, begin_checked
from tests.support.history import DOMAIN
from tests.support.swarm_job import Papers, make_papers
from tests.unit.training.coordinator.books import join, open_book
from training.coordinator.routing import SILENT_AFTER, WorkFor
from training.journal import Journal
from training.swarm.events import PeerLost, UnitsDone
from training.swarm.state import Copy
from training.transport import calls
from training.transport.port import Session

NAMES = ("ann", "bob", "cem")
UNITS = 6
FIRST = StageIndex(0)


@pytest.fixture(scope="module")
def papers() -> Papers:
    return make_papers(*NAMES, trainers=2, units_per_step=UNITS, steps=4)


class World:
    """A book with three members, and a clock that a test moves."""

    def __init__(self, papers: Papers, journal: Journal, begin: Begin = unread) -> None:
        self.papers, self.now = papers, UnixMillis(1_000_000)
        self.book = open_book(papers, journal, begin)
        for name in NAMES:
            join(self.book, papers, name, self.now)
        self.sessions: dict[SessionKey, Session] = {}
        self.idle: set[Address] = set()
        self.work = WorkFor(
            self.book,
            lambda: self.sessions,
            clock=lambda: self.now,
            why_idle=lambda account: "no_limit" if account in self.idle else None,
        )

    def peer(self, name: str) -> PeerId:
        """Its id."""
        return self.papers.members[name].session.peer

    def trainer(self, number: int) -> SessionKey:
        """Its key."""
        return self.papers.opening.trainers[number]

    def done(self, unit: int, name: str) -> None:
        """A unit counts as the work of this member."""
        copy = ((FIRST, ItemNumber(unit)), Copy(self.peer(name), attempt=1))
        self.book.record(UnitsDone(StepNumber(1), (copy,), self.now))

    async def ask(
        self,
        number: int,
        *,
        after: calls.StepWork | None = None,
        busy: tuple[int, ...] = (),
    ) -> calls.StepWork:
        """What a trainer is told that goes by the answer `after` and has `busy` on its way."""
        trainer = self.trainer(number)
        self.sessions[trainer] = cast(Session, object())  # that there is one is all that counts
        known = tuple(
            calls.QuotaView(session_key=each.session_key, quota=each.quota)
            for each in (after.workers if after else ())
        )
        request = calls.NextStep(
            job=self.papers.job,
            seen=after.version if after else 0,
            step=after.step if after else 0,
            known=known,
            busy=tuple(ItemNumber(unit) for unit in busy),
            validating=0,
        )
        return await self.work.next(trainer, request)


@pytest.fixture
def world(papers: Papers, tmp_path: Path) -> Iterator[World]:
    with Journal(tmp_path / "journal") as journal:
        yield World(papers, journal)


def units_of(work: calls.StepWork) -> list[int]:
    return sorted({int(place.unit) for place in work.places})


async def test_work_for__two_trainers__share_the_units_by_number(world: World) -> None:
    await world.ask(1)

    first, second = await world.ask(0), await world.ask(1)

    assert (units_of(first), units_of(second)) == ([0, 2, 4], [1, 3, 5])
    for work in (first, second):
        assert sum(worker.quota for worker in work.workers) >= len(units_of(work))


async def test_work_for__one_trainer_silent__the_other_has_all(world: World) -> None:
    await world.ask(1)
    world.now = UnixMillis(world.now + SILENT_AFTER)

    assert units_of(await world.ask(0)) == list(range(UNITS))


async def test_work_for__units_out_with_another__are_not_given_twice(world: World) -> None:
    alone = await world.ask(1)
    news = asyncio.ensure_future(world.ask(1, after=alone, busy=(0, 1, 2)))
    await asyncio.sleep(0)

    fresh = await world.ask(0)

    assert units_of(fresh) == [4]
    news.cancel()


async def test_work_for__attempts__rise_from_answer_to_answer(world: World) -> None:
    froms = [(await world.ask(0)).attempts_from for _ in range(3)]

    assert froms == sorted(set(froms))
    assert froms[0] >= world.now


async def test_work_for__nothing_new__waits_until_there_is(world: World) -> None:
    work = await world.ask(0)
    news = asyncio.ensure_future(world.ask(0, after=work, busy=tuple(range(UNITS))))
    await asyncio.sleep(0)
    world.done(0, "ann")
    await asyncio.sleep(0)
    assert not news.done()

    world.book.record(PeerLost(world.peer("bob"), world.now))

    assert [each.session_key for each in (await news).workers] != [
        each.session_key for each in work.workers
    ]


async def test_work_for__unit_that_is_not_out__is_news(world: World) -> None:
    work = await world.ask(0)
    world.done(5, "ann")

    assert units_of(await world.ask(0, after=work, busy=(0, 1, 2, 3))) == [0, 1, 2, 3, 4]


async def test_work_for__report_of_an_older_step_comes_late__units_of_this_one_are_still_out(
    world: World,
) -> None:
    await world.ask(1)
    first, second = await world.ask(0), await world.ask(1)
    unit = units_of(first)[0]
    asking = asyncio.ensure_future(world.ask(0, after=first, busy=tuple(units_of(first))))
    await asyncio.sleep(0)

    world.work.note_report(world.trainer(0), StepNumber(first.step - 1), {unit})
    world.done(units_of(second)[0], "ann")
    await asyncio.sleep(0)

    assert not asking.done()
    asking.cancel()


async def test_work_for__checked_job__who_has_little_at_stake_gets_what_that_covers(
    tmp_path: Path,
) -> None:
    papers = make_papers(
        *NAMES, units_per_step=UNITS, steps=4, audit=audit_spec(), min_stake=BaseUnits(120_000)
    )  # a unit is worth 111,111
    leases = dict(papers.leases)
    for name in NAMES[1:]:
        rich = leases[name].message.model_copy(update={"stake": BaseUnits(10**7)})
        leases[name] = papers.members[name].wallet.sign(rich, DOMAIN)

    with Journal(tmp_path / "journal") as journal:
        world = World(replace(papers, leases=leases), journal, begin_checked)
        work = await world.ask(0)

    poor = papers.members[NAMES[0]].session.key
    quotas = {each.session_key: each.quota for each in work.workers}
    assert quotas.pop(poor) == 1
    assert sorted(quotas.values()) == [2, 3]


async def test_next__account_of_a_member_is_idle__others_get_its_units_until_it_is_not(
    world: World,
) -> None:
    ann = world.papers.members["ann"]
    world.idle.add(ann.wallet.account)

    work = await world.ask(0)

    assert ann.session.key not in {each.session_key for each in work.workers}
    assert sum(each.quota for each in work.workers) >= UNITS
    assert len(world.book.state.members) == len(NAMES), "it stays a member"

    world.idle.clear()
    world.book.changes.mark()
    again = await world.ask(0, after=work)

    assert ann.session.key in {each.session_key for each in again.workers}
