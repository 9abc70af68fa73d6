"""What an outside auditor knows of a job: its history as the market keeps it, and own reports.

The history is read again at every start: it says all by itself, and costs milliseconds a step. What
we have said is in the journal before it is sent, so that one draw gets one report.

Invariants: nothing counts before the fold of `contracts.governance` has taken it, with every
signature; a seal counts once each coin that it names is the one that we read from the chain, where
it was anchored with the seal that the history has.
"""

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.coins import Coins, check_coin
from contracts.terms.errors import Conflict
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId, PeerId, StepNumber
from contracts.terms.messages import AuditReport, Message, Seal, StepCoin
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.typed_data import Domain
from training.changes import Changes
from training.journal import Journal, Row
from training.worker.sealed import SealedWork

REPORT = "own_report"


class OutsiderBook:
    """Of one job; `changes` is marked with every seal."""

    def __init__(
        self, journal: Journal, job: JobId, domain: Domain, begin: Begin, coins: Coins
    ) -> None:
        self._journal, self._job, self._coins = journal, job, coins
        self._history = JobHistory(domain, begin)
        self._reports: dict[tuple[Digest, int], Signed[AuditReport]] = {}
        self._seals: dict[StepNumber, Digest] = {}
        self.work, self.changes, self.num_items = SealedWork(), Changes(), 0
        for row in journal.rows():
            self._note_report(expect(decode_signed(row.data), AuditReport))

    # ---------------------------------------------------------------------------------- history

    @property
    def record(self) -> JobRecord:
        """What the seals that we have read establish."""
        assert self._history.record is not None  # since `is_open`
        return self._history.record

    @property
    def parties(self) -> tuple[Signed[Message], ...]:
        """See `JobHistory.parties`."""
        return self._history.parties

    @property
    def is_open(self) -> bool:
        """Whether the job is opened, and its list of outside auditors is known."""
        record = self._history.record
        return record is not None and record.outside.digest() == record.opening.outside_auditors

    @property
    def is_over(self) -> bool:
        """Whether its last seal is known."""
        return self._history.record is not None and self._history.record.ended

    def lists(self, peer: PeerId) -> bool:
        """Whether the job may draw this key."""
        return peer in {each.peer for each in self.record.outside.auditors}

    async def take(self, item: Kept) -> None:
        """Read the next item of the history; its number is `num_items` then.

        Raises:
            Conflict: it is another job's. Unavailable: a coin is not known here yet: again later.
            InvalidSeal: see `check_coin`. Whatever `follow` raises.
        """
        after, before = follow(self._history, item), self._history
        if after.record is not None and after.record.job != self._job:
            raise Conflict("this is the history of another job")
        is_seal = isinstance(item, Signed) and isinstance(item.message, Seal)
        if is_seal:
            for signed in before.pending.values():
                if isinstance(signed.message, StepCoin):
                    await self._check_coin(signed.message)
        self._history = after
        self.num_items += 1
        if is_seal:
            self._note_seal(before)

    def _note_seal(self, under: JobHistory) -> None:
        self._seals[self.record.step] = self.record.previous
        self.work.note(under)
        oldest = self.record.checking.oldest_needed
        self.work.forget_before(StepNumber(self.record.step + 1) if oldest is None else oldest)
        self.changes.mark()

    async def _check_coin(self, said: StepCoin) -> None:
        check_coin(said, await self._coins.coin_of(said.of), self._seals[said.of])

    # ---------------------------------------------------------------------------------- reports

    def own_report(self, subject: Digest, attempt: int) -> Signed[AuditReport] | None:
        """What we have said as this auditor of a draw."""
        return self._reports.get((subject, attempt))

    def keep_report(self, signed: Signed[AuditReport]) -> None:
        """Store a report of ours, before it is sent; raises Unavailable."""
        self._journal.append([Row(REPORT, signed.encoded())])
        self._note_report(signed)

    def _note_report(self, signed: Signed[AuditReport]) -> None:
        self._reports[signed.message.subject, signed.message.attempt] = signed
