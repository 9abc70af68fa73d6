"""What time brings to the draws of a job: coins that count now, and auditors that are late.

Deadlines are counted in seals (`checking`); a report is called late only after `commit_timeout` of
our own clock besides, counted while we are up: seals come quickly while a job ends. Nobody waits so
for one who has left.
"""

from collections.abc import Awaitable, Callable

from contracts.governance.checking import Late
from contracts.terms.coins import Coin, Coins
from contracts.terms.errors import Refused, Unavailable
from contracts.terms.ids import Digest
from contracts.terms.messages import Message, StepCoin
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from training.coordinator.book import Book
from training.coordinator.draws import coin_wanted, late_reports
from training.coordinator.finding import Finding
from training.coordinator.ports import Clock
from training.swarm.events import NoticeDue, SealDue, SealWanted
from training.telling import Tell

LOOK_EVERY = 0.25  # seconds

Pause = Callable[[float], Awaitable[None]]


class Drawing:
    """Records coins and missed reports of a checked job."""

    def __init__(
        self,
        book: Book,
        coins: Coins,
        finding: Finding,
        *,
        clock: Clock,
        tell: Tell,
        pause: Pause,
    ) -> None:
        """`finding` says for whom we look for data: such a report waits."""
        self._book, self._coins, self._finding = book, coins, finding
        self._clock, self._tell, self._pause = clock, tell, pause
        self._since: dict[tuple[Digest, int], UnixMillis] = {}  # of each attempt, as we saw it

    async def run(self) -> None:
        """Look for ever; cancelled when the job is over."""
        while self._book.state.terms.is_checked:
            try:
                await self._take_coins()
            except (Unavailable, Refused) as error:
                self._tell("coins_wait", code=error.code, reason=error.message)
            self._note_late()
            await self._pause(LOOK_EVERY)

    async def _take_coins(self) -> None:
        while (step := coin_wanted(self._book.record_of_job, self._book.unsealed())) is not None:
            coin = await self._coins.coin_of(step)
            if coin is None:
                return
            self._record(coin)

    def _record(self, coin: Coin) -> None:
        message = StepCoin(
            job=self._book.record_of_job.job,
            step=self._book.state.step,
            of=coin.step,
            batch=coin.batch,
            block=coin.block,
            coin=coin.value,
        )
        signed = self._book.sign(message)
        self._book.record(SealWanted(self._clock()), Signed[Message](message, signed.signature))
        self._tell("coin_taken", step=message.step, of=coin.step)

    def _note_late(self) -> None:
        record, now = self._book.record_of_job, self._clock()
        awaited = {(each.subject, each.attempt): each for each in record.checking.awaited()}
        self._since = {name: self._since.get(name, now) for name in awaited}
        self._finding.forget_others(awaited.values())
        slow = [each for each in awaited.values() if self._is_slow(each, now)]
        step = self._book.state.step
        late = late_reports(record, self._book.unsealed(), step)
        for each in [each for each in slow if each in late]:
            self._say_late(each)
        state = self._book.state
        waits = self._finding.waits or (slow and not late)
        is_idle = state.draining or state.paused  # else the seals of work carry on
        if is_idle and (state.to_seal or waits):
            self._book.record(SealDue(now))  # also because these are counted in seals

    def _is_slow(self, late: Late, now: UnixMillis) -> bool:
        record = self._book.record_of_job
        is_listed = late.auditor in {each.peer for each in record.outside.auditors}
        if late.auditor not in self._book.state.members and not is_listed:
            return True  # it has left
        waited = now - self._since[late.subject, late.attempt]
        return waited >= record.spec.rules.commit_timeout and not self._finding.excuses(late)

    def _say_late(self, late: Late) -> None:
        step = self._book.state.step
        event = NoticeDue("missed_report", late.auditor, late.stage, late.subject, self._clock())
        if self._book.record(event):  # before it is told: who reads the log may count on it
            self._tell("report_missed", step=step, peer=late.auditor)
