"""A job's history with all that is told of it beside: odds, lines of pay, the ways of its draws.

A record knows its newest seal alone, so a job's messages are folded once more, with what people ask
for beside; the fold is remembered and goes on from where it was. The rows are the truth: a fold
beyond them is made again. Who reads a fold after an `await` of its own takes what it needs before,
or holds `going_on`: others go on with it meanwhile. The caller is in a transaction.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from contracts.governance.job import JobHistory, follow
from contracts.governance.rounds import claims_of
from contracts.terms.history import Kept
from contracts.terms.ids import JobId, PeerId, StageIndex, StepNumber
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from market.domain.sizes import item_tokens
from market.service.histories import Histories, read_items
from market.service.ports import UnitOfWork
from market.service.rows import MessageRow
from verification.earnings import Earnings, Line
from verification.tallies import Tally, Traces

MAX_REMEMBERED = 64


class Round(NamedTuple):
    """What was so when a round was sealed, beside its claims."""

    members: Mapping[PeerId, StageIndex]  # before it
    tokens: int  # of text in all updates up to it
    ahead: int  # items in it that were computed while the round before was exchanged


NO_ROUND = Round({}, 0, 0)


@dataclass
class Followed:
    """A job up to message `sequence`, and what all its seals showed."""

    history: JobHistory
    sequence: int = 0
    tally: Tally = field(default_factory=Tally)
    earnings: Earnings = field(default_factory=Earnings)
    traces: Traces = field(default_factory=Traces)
    rounds: dict[StepNumber, Round] = field(default_factory=dict)
    going_on: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, item: Kept) -> None:
        """One more item; nothing is half taken, as nobody is waited for."""
        before, self.history = self.history, follow(self.history, item)
        self.sequence += 1
        match item:
            case Signed(message=Seal()):
                self._seal(before)

    def _seal(self, before: JobHistory) -> None:
        record, newest = self.history.record, self.history.newest
        assert record is not None and newest is not None  # as a seal was followed
        under = before.pending_of(newest.names)
        self.tally.note(record.checking, record.step)
        self.earnings.note(record, newest, under)
        self.traces.note(record.checking, record.step, under, self.tally)
        assert before.record is not None
        so_far = self.rounds.get(before.record.step, NO_ROUND).tokens
        # All stages have worked on the same items.
        items = sum(line.num_items for line in self.work_of(record.step) if line.stage == 0)
        tokens = so_far + items * item_tokens(record.spec)
        ahead = sum(
            leaf.base_round < claim.round
            for claim in claims_of(under, "work")
            for leaf in before.leaves.get(claim.digest(), ())
        )
        self.rounds[record.step] = Round(before.record.members, tokens, ahead)

    def work_of(self, step: int) -> list[Line]:
        """The claims of work that a seal holds."""
        lines = self.earnings.by_step.get(StepNumber(step), ())
        return [line for line in lines if line.kind == "work"]


class FollowedJobs:
    """Followed jobs, the least recently used forgotten first."""

    def __init__(self, histories: Histories) -> None:
        self._new = histories.new
        self._known: OrderedDict[JobId, Followed] = OrderedDict()

    async def load(self, job: JobId, sequence: int, work: UnitOfWork) -> Followed:
        """`job` up to message `sequence` at least, which was its last row."""
        found = self._known.get(job)
        if found is None or await _is_beyond(found, job, sequence, work):
            found = self._known[job] = Followed(self._new())
        self._known.move_to_end(job)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        async with found.going_on:
            async for item in read_items(job, work, after=found.sequence, last=sequence):
                found.take(item)
        return found


async def _is_beyond(found: Followed, job: JobId, sequence: int, work: UnitOfWork) -> bool:
    """Whether a fold holds messages that are in no row; others may just have seen newer ones."""
    if found.sequence <= sequence:
        return False
    return await work[MessageRow].get(job, found.sequence) is None
