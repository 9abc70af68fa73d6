"""Claims of work: what we bind ourselves to in a round, made once and given again.

Invariants
- The shards are on disk and the claim with its leaves is in the journal before anybody hears of it;
  the same question gets the same claim.
- One claim a (round, seq); the gradient that it was made of holds its items and no other, each as
  its leaf says.
- A bucket is in memory at a time, while the one before it is written.
"""

import asyncio
from collections.abc import Iterator
from functools import partial

from contracts.terms.errors import Conflict, Refused, Unavailable
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, StepNumber
from contracts.terms.items import MAX_ITEMS, ItemNumber, contains, count, numbers_of, ranges_of
from contracts.terms.work import MAX_SEQ, Leaf, Output, WorkClaim
from training.strategies.port import Draft, Piece
from training.transport.calls import Commit
from training.worker.book import OwnClaim
from training.worker.items import Items
from training.worker.station import Station
from training.worker.turns import Rank


class Claims:
    """Our claims of the round in work."""

    def __init__(self, station: Station, items: Items) -> None:
        self._at, self._items = station, items

    async def commit(self, asked: Commit) -> OwnClaim | tuple[ItemNumber, ...]:
        """Bind ourselves to what the coordinator counts as ours, or say which items we lack.

        Raises:
            Unavailable, Conflict: of another round. Conflict: more claims, or items, than one may
                have in a round.
        """
        if not 0 < count(asked.items) <= MAX_ITEMS:
            raise Conflict(f"a claim of {count(asked.items)} items, {MAX_ITEMS} at most")
        return await self._at.engine.at(Rank.STEP, lambda: self._commit(asked))

    async def _commit(self, asked: Commit) -> OwnClaim | tuple[ItemNumber, ...]:
        self._at.need_round(asked.round)
        wanted = numbers_of(asked.items)
        for own in self._at.book.bound.work:
            if not set(wanted).isdisjoint(own.claim.numbers):
                return own
        if len(self._at.book.bound.work) > MAX_SEQ:
            raise Conflict(f"more than {MAX_SEQ + 1} claims of one round")
        leaves = [self._items.leaf(item) for item in wanted]
        lacked = tuple(
            item
            for item, leaf in zip(wanted, leaves, strict=True)
            if leaf is None or (leaf.given and not contains(asked.given, item))
        )
        if lacked:
            return lacked
        if lost := await self._items.gather(wanted):
            return lost
        try:
            return await self._bind(wanted, tuple(each for each in leaves if each))
        except Unavailable as error:  # a full disk: others do them at once, not at a deadline
            self._at.tell("not_bound", step=asked.round, reason=error.message)
            for item in wanted:
                self._items.forget(item)
            return wanted

    async def _bind(
        self, items: tuple[ItemNumber, ...], leaves: tuple[Leaf, ...]
    ) -> OwnClaim | tuple[ItemNumber, ...]:
        at, round = self._at, self._at.round
        draft = partial(at.strategy.commit, frozenset(items))
        try:
            made = await at.engine.run(draft)
        except Refused:  # an error has emptied the gradient since, or left others in it
            if lost := await self._items.compute_again(items):
                return lost
            made = await at.engine.run(draft)
        outputs = await self._kept(made, round)
        message = WorkClaim(
            job=at.book.record.job,
            peer=at.peer,
            previous=at.book.record.previous,
            round=round,
            what="work",
            group=at.group,
            seq=len(at.book.bound.work),
            attempt=0,
            base=at.roots.state,
            items=ranges_of(items),
            subject=ZERO_DIGEST,
            leaves=claim_leaves_root(leaves),
            outputs=tuple(outputs),
            reports=tuple(own.name for own in at.book.unsealed_reports()),
        )
        own = OwnClaim(at.session.sign(message), leaves)
        at.book.keep_claim(own)
        await self._items.claimed()
        about = {"stage": at.group, "seq": message.seq, "items": len(items)}
        at.tell("claim_stored", step=round, **about)
        return own

    async def _kept(self, draft: Draft, round: StepNumber) -> list[Output]:
        """Write the shards, each while the next one is made."""
        at, outputs = self._at, list[Output]()
        written: asyncio.Future[None] | None = None
        while (piece := await at.engine.run(partial(_next, draft.shards))) is not None:
            output, data = piece
            outputs.append(output)
            if written is not None:
                await written
            put = partial(at.store.put, "shards", round, output.digest, data)
            written = asyncio.ensure_future(at.engine.run_io(put))
        if written is not None:
            await written
        return outputs


def _next(shards: Iterator[Piece]) -> Piece | None:
    return next(shards, None)
