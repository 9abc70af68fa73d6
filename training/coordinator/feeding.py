"""Posting what is kept to the market, in order, from a cursor in the journal.

The market being down never stops a step: this task alone waits, with growing pauses, and goes on
from where it was. What the market refuses ends the coordinator: order is the law of a history, so
nothing behind it may go first, and work beyond the last seal that the market has is not paid.
"""

from collections.abc import Awaitable, Callable
from itertools import islice

from contracts.terms.errors import Misbehaved, Refused, Unavailable
from training.coordinator.journal import KEPT, REPORT, JobJournal
from training.coordinator.ports import Feed, decode_report
from training.journal import NumberedRow
from training.telling import Tell

CURSOR = "feed"
MAX_ROWS = 256
MAX_BYTES = 8 * 2**20
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds
GATHER = 0.2
"""Seconds for which what comes next may join a post: each is a transaction of the market."""

Pause = Callable[[float], Awaitable[None]]


class Feeding:
    """Moves the feed's cursor to the end of the journal, again and again."""

    def __init__(self, job: JobJournal, feed: Feed, *, tell: Tell, pause: Pause) -> None:
        self._job, self._feed, self._tell, self._pause = job, feed, tell, pause

    @property
    def is_done(self) -> bool:
        """Whether everything in the journal was posted."""
        return self._job.file.cursor(CURSOR) >= len(self._job.file)

    async def run(self) -> None:
        """Post for ever; cancelled when the job is over.

        Raises:
            Refused, Misbehaved: the market will never take what comes next.
        """
        while True:
            seen = self._job.changes.version
            if self.is_done:
                await self._job.changes.beyond(seen)
            else:
                await self._pause(GATHER)
                await self.post_once()

    async def post_once(self) -> None:
        """Post the next rows, however long the market is away. Raises as `run`."""
        rows = self._next_rows()
        items = [row.data for row in rows if row.kind == KEPT]
        reports = [decode_report(row.data) for row in rows if row.kind == REPORT]
        if items:
            await self._insist(lambda: self._feed.post(items))
        if reports:
            await self._insist(lambda: self._feed.report(reports))
        self._job.file.move_cursor(CURSOR, rows[-1].sequence)
        if self.is_done:
            self._job.changes.mark()  # somebody may wait for that

    def _next_rows(self) -> list[NumberedRow]:
        journal = self._job.file
        rows: list[NumberedRow] = []
        size = 0
        for row in islice(journal.rows(after=journal.cursor(CURSOR)), MAX_ROWS):
            size += len(row.data)
            if rows and size > MAX_BYTES:
                break
            rows.append(row)
        return rows

    async def _insist(self, post: Callable[[], Awaitable[None]]) -> None:
        span = FIRST_PAUSE
        while True:
            try:
                return await post()
            except Unavailable as error:
                self._tell("feed_waits", reason=error.message)
            except (Refused, Misbehaved) as error:
                self._tell("feed_refused", code=error.code, reason=error.message)
                raise
            await self._pause(span)
            span = min(2 * span, LONGEST_PAUSE)
