"""The state of our group: built, resumed, loaded from others, moved on by seals, checked, rebuilt.

Invariants
- Only bytes whose digests a valid seal names reach the weights, each seal's once, bucket by bucket.
- A state that came from others has the root that RoundClosed says of the next update. The newest
  one may have no such seal yet: then it is compared as soon as there is one.
- Whoever differs from the others finds out by the next update and builds the state again, from
  sealed bytes. Who comes to the same state as before is right by derivation, says so and goes on;
  who comes to a third one cannot compute, which ends the process.

A newcomer (its state is older than `state_round` of `Joined`) stores seals without applying them,
loads a checkpoint of that round from the members of its group, and applies from there. Who moves to
another group is one: what it did in the old one stays in that group's folder.
"""

import asyncio
import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from contracts.governance.claims import SealedPay
from contracts.governance.job import JobHistory
from contracts.governance.vesting import forfeited_by
from contracts.terms import errors
from contracts.terms.beacons import Beacons, check_beacon
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex, StepNumber
from contracts.terms.messages import StepBeacon
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim
from training.strategies.port import State
from training.tasks import all_of
from training.telling import telling_about
from training.worker.book import SealedRound, last_seal
from training.worker.exchange import Exchange
from training.worker.files import SharedFile, take_file
from training.worker.items import Items
from training.worker.keeping import Keeping
from training.worker.station import Station
from training.worker.turns import Rank

_NEVER = StepNumber(0)
REBUILD_FROM = 4  # newest checkpoint rounds that are tried, beside the initial state


class States:
    """Moves the state of a `Station`."""

    def __init__(
        self,
        station: Station,
        items: Items,
        exchange: Exchange,
        keeping: Keeping,
        beacons: Beacons | None = None,
        published: Callable[[StepNumber], None] = lambda step: None,
    ) -> None:
        """`published` is told which of our checkpoints the job publishes, once they are stored."""
        self._at, self._items, self._exchange = station, items, exchange
        self._keeping, self._beacons, self._published = keeping, beacons, published
        self._load_from = self._joined_in = _NEVER
        self._left_out = 0  # see `SealedPay.left_out`
        self._is_disputed = False
        """We have built our state again, and others still bind themselves to another one."""
        self._needed: dict[StepNumber, frozenset[Digest]] = {}  # claims whose audits need a round
        self.outdated = asyncio.Event()
        """Set when nobody has the checkpoint that we were to load: join again, for a newer one."""

    # -------------------------------------------------------------------------------- beginning

    async def resume(self) -> None:
        """Build the state again as far as it is on our disk: checkpoint, then buckets.

        What is lacking comes with the seals that the coordinator hands us again.

        Raises:
            Conflict: the journal was lost or replaced.
            InvariantBroken: the state differs from the one that was there before.
        """
        at = self._at
        await self._keep_pay()
        if at.book.group is None:
            return
        await at.build(at.book.group)
        state, folder = at.state, at.checkpoints
        round = await at.engine.run(lambda: state.restore(folder))
        if round > at.book.sealed:
            raise errors.Conflict("checkpoints are ahead of the journal: it was lost or replaced")
        await self._move_to(round)
        every = at.book.record.spec.batch.publish_every or round + 1
        with contextlib.suppress(errors.NotFound):  # perhaps we ended while it was on its way
            self._publish(StepNumber(round - round % every))
        while at.applied < at.book.sealed:
            sealed = at.book.rounds[at.round]
            here = [await at.holds(each.outputs[0].digest, "part") for each in self._own(sealed)]
            if not all(here):
                break
            await self._apply(sealed)
        self._tell_root("resumed")

    def _own(self, sealed: SealedRound) -> tuple[WorkClaim, ...]:
        return sealed.of(self._at.layout.outputs[self._at.group])

    async def measure(self, group: StageIndex, seed: int) -> None:
        """One reference item in a group, whose state is built if it is not ours yet.

        Who asks is about to let us join there. What is in the gradient of another group is lost,
        and computed again if it is wanted after all.
        """
        at = self._at

        async def work() -> None:
            if at.seat != group:
                await at.build(group)
            state = at.state
            await at.engine.run(lambda: state.measure(seed))

        await at.engine.at(Rank.FORWARD, work)

    @property
    def goes_on_from(self) -> StepNumber:
        """Our round; if others have dropped what comes after it, 0, as of who has just come."""
        return _NEVER if self.outdated.is_set() else self._at.applied

    async def take_group(
        self, group: StageIndex, state_round: StepNumber, *, joined_in: StepNumber = _NEVER
    ) -> None:
        """Work in this group, from a state that is not older than that after `state_round`.

        `joined_in`: the round in work then. Until it we lag: others may drop what we still lack.

        Raises:
            Unavailable: none can be had now. Misbehaved: what is offered is not what was sealed.
        """
        at = self._at
        is_behind = at.applied < state_round <= at.book.sealed  # we have moved, or lost our buckets
        if at.book.group == at.seat == group and not is_behind:
            # A segment that is computed meanwhile may take long: we go on talking at once.
            self._load_from, self._joined_in = state_round, joined_in
            self.outdated.clear()
            return

        async def work() -> None:
            if at.book.group != group:
                at.book.keep_group(group)
                if at.seat != group:  # else it was built to be measured, and is as new
                    await at.build(group)
                await self._move_to(StepNumber(0))
            elif at.seat != group:
                await self.resume()  # another group was measured meanwhile
            self._load_from, self._joined_in = state_round, joined_in
            if at.applied < state_round <= at.book.sealed:
                await self._load(state_round)
                await self._catch_up()
            self.outdated.clear()

        await at.engine.at(Rank.STEP, work)

    async def _move_to(self, round: StepNumber) -> None:
        await self._at.note_state(round)
        self._items.begin_round()
        await self._exchange.begin_round()
        await self._keeping.keep_weights()

    # ------------------------------------------------------------------------------------ seals

    async def take_seal(
        self, names: Sequence[Digest], given: Mapping[Digest, Kept], all_applied: StepNumber
    ) -> tuple[StepNumber, Digest] | None:
        """Check a seal, store it with everything under it, and apply it.

        Args:
            names: Of all that is kept under the seal, in order, itself last (`kept_digest`).
            given: What came with the call; the rest we have said or were told in the round.
            all_applied: Buckets of later rounds may be fetched from us.

        Returns:
            Its round, and the state root that it led to, zero while the state is still to be
            loaded; None: not all of it is here.

        Raises:
            InvalidSeal, Equivocation, BadSignature, Malformed, Conflict: see `read_seal`.
            Unavailable: a bucket that it names, or a checkpoint, cannot be fetched.
        """
        self._at.all_applied = all_applied

        async def take() -> tuple[StepNumber, Digest] | None:
            known = {**self._exchange.kept, **self._at.book.said(), **given}
            if not known.keys() >= set(names):
                return None
            return await self._take([known[name] for name in names])

        return await self._at.engine.at(Rank.STEP, take)

    async def stored(self) -> None:
        """Returns when the seal that is being applied is, its checkpoint on disk included."""
        await self._at.engine.at(Rank.STEP, _nothing)

    async def _take(self, items: list[Kept]) -> tuple[StepNumber, Digest]:
        at, round = self._at, last_seal(items).message.step
        if (seal := at.book.read_seal(items)) is not None:
            if round > self._load_from:
                await self._hold(round, self._own(seal.sealed))
            for item in items:
                if isinstance(item, Signed) and isinstance(item.message, StepBeacon):
                    await self._check_beacon(item.message)
            own = self._own_claims(seal.under)
            at.book.keep_seal(seal)
            self._note_left_out(round, own)
            await self._keep_pay()
            at.tell("seal_stored", step=round, stage=at.group)
        if at.applied < self._load_from:
            if at.book.sealed < self._load_from:
                return round, ZERO_DIGEST
            await self._load(self._load_from)
        await self._catch_up()
        return round, at.book.roots.get(round, ZERO_DIGEST)

    async def _hold(self, round: StepNumber, buckets: Sequence[WorkClaim]) -> None:
        try:
            await all_of(map(self._exchange.have, buckets))
        except errors.Unavailable:
            if round < self._joined_in:
                self.outdated.set()  # who joins anew is told of a state that the others have now
            raise

    def _own_claims(self, under: JobHistory) -> Set[Digest]:
        """Claims of work of ours that no seal has covered, those of void rounds included."""
        claims = [own.claim for own in self._at.book.bound.work]
        claims += [
            each.message for each in under.pending.values() if isinstance(each.message, WorkClaim)
        ]
        own = (each for each in claims if each.what == "work" and each.peer == self._at.peer)
        return {each.digest() for each in own}

    def _note_left_out(self, round: StepNumber, own: Set[Digest]) -> None:
        """Count the seals in a row that hold none of our work, though we worked.

        A pass is work whatever came of it: a coordinator for whom we work in vain need not ask for
        the backward pass, or for a claim.
        """
        newest = self._at.book.history.newest
        if newest is not None and own & newest.paid:
            self._left_out = 0
        elif own or round == self._items.worked_in:
            self._left_out += 1

    async def _keep_pay(self) -> None:
        """For our account's agent: it claims by it, whatever became of market and coordinator."""
        record, newest = self._at.book.record, self._at.book.history.newest
        if newest is not None:
            lost = forfeited_by(record.pay, record.pay_leases())
            paid = SealedPay(newest.seal, newest.pay, lost, self._left_out)
            await self._at.engine.run_io(lambda: self._at.store.put_pay(paid.encoded()))

    async def _check_beacon(self, said: StepBeacon) -> None:
        """Compare what a seal says of the chain with what we read there ourselves.

        Raises:
            InvalidSeal, Unavailable: see `contracts.terms.beacons.check_beacon`.
        """
        beacon = await self._beacons.beacon_of(said.of) if self._beacons else None
        check_beacon(said, beacon, self._at.book.rounds[said.of].seal.digest())

    async def _catch_up(self) -> None:
        """Apply what is sealed, after our state was compared with that of the others."""
        at = self._at
        if (root := self._sealed_root()) is not None and root != at.roots.state:
            self._tell_root("state_differs", sealed_root=root)
            if not self._is_disputed:
                await self._rebuild()
        while at.applied < at.book.sealed:
            await self._apply(at.book.rounds[at.round])

    def _tell_root(self, event: str, **more: object) -> None:
        self._at.tell(
            event,
            step=self._at.applied,
            stage=self._at.group,
            state_root=self._at.roots.state,
            **more,
        )

    def _sealed_root(self) -> Digest | None:
        return self._at.book.state_root(self._at.group, self._at.applied)

    async def _apply(self, sealed: SealedRound) -> None:
        at, seal = self._at, sealed.seal
        if own := self._own(sealed):
            await all_of(map(self._exchange.have, own))
            state, buckets = at.state, map(at.store.read, _digests(own))
            at.take_state(await self._update(lambda: at.strategy.apply(state, buckets, seal)))
        await self._move_to(seal.step)
        at.book.keep_applied(seal.step, at.roots.state)
        self._tell_root("seal_applied", weights_root=at.roots.weights)
        self._narrow()
        await self._keeping.drop()
        await self._checkpoint(seal.step, is_last=seal.last)
        at.sealed_changes.mark()

    def _narrow(self) -> None:
        """Of rounds whose beacon is known, what open draws may still ask us for."""
        at, checking = self._at, self._at.book.record.checking
        oldest, pending = at.book.oldest_needed, at.book.pending
        kept = self._keeping.retention.settled_before(oldest).with_pending(pending)
        rounds = map(StepNumber, range(oldest, at.book.sealed + 1))
        needed_of = {round: checking.needed_of(round) for round in rounds}
        made_in = defaultdict[StepNumber, set[Digest]](set)  # what may be asked for by which names
        for step, drawn in needed_of.items():
            for name in at.book.work.covered_by(step) if drawn is None else drawn:
                for round in at.book.work.made_in(name):
                    made_in[round].add(name)
        for round, drawn in needed_of.items():
            names = frozenset(made_in[round])
            if drawn is not None and round not in pending and names != self._needed.get(round):
                self._needed[round] = names
                needed = (at.book.work.needed_by(name) for name in names)
                kept = kept.narrowed(round, {digest for each in needed for digest in each})
        self._needed = {round: each for round, each in self._needed.items() if round >= oldest}
        self._keeping.retention = kept

    async def _update(self, work: Callable[[], State]) -> State:
        """Change the state; one that is half changed is nobody's.

        Raises:
            InvariantBroken: the device failed, or is full; a new process begins from disk.
        """
        try:
            return await self._at.engine.run(work)
        except (RuntimeError, MemoryError, errors.TallystickError) as error:
            raise errors.InvariantBroken(f"an update broke off: {error}") from error

    async def _checkpoint(self, round: StepNumber, *, is_last: bool) -> None:
        at = self._at
        if not (round % self._every == 0 or is_last):
            return
        state, folder = at.state, at.checkpoints
        await at.engine.run(lambda: state.save(folder, round))
        kept = await at.engine.run(lambda: state.oldest_kept(folder))
        unwanted = min(kept, at.all_applied)
        await at.engine.run_io(lambda: at.store.drop(["buckets"], lambda of: of > unwanted))
        at.tell("checkpoint_stored", step=round, stage=at.group)
        if not is_last:
            self._publish(round)

    def _publish(self, round: StepNumber) -> None:
        if self._at.book.record.spec.batch.publishes(round):
            self._published(round)

    @property
    def _every(self) -> int:
        return self._at.book.record.spec.batch.checkpoint_every

    # --------------------------------------------------------------------- states of other members

    async def _load(self, wanted: StepNumber) -> None:
        """Take over a checkpoint of this round, or of a newer one that is sealed here.

        Raises:
            Unavailable: none can be had now. Misbehaved: what is offered is not what was sealed.
        """
        newer = range(wanted, self._at.book.sealed + 1, self._every)
        for number in newer:
            round = StepNumber(number)
            try:
                await self._adopt(round)
            except errors.NotFound:
                continue  # its holders have dropped it meanwhile
            await self._loaded(round)
            return
        self.outdated.set()
        raise errors.Unavailable(f"no member has a checkpoint of round {wanted} any more")

    async def _loaded(self, round: StepNumber) -> None:
        await self._move_to(round)
        left = self._at.folder / "download"  # of files that turned out to be wrong ones
        await self._at.engine.run_io(lambda: shutil.rmtree(left, ignore_errors=True))
        self._at.book.keep_applied(round, self._at.roots.state)
        self._tell_root("state_loaded")

    async def _adopt(self, round: StepNumber) -> None:
        """Take over the state after `round` from the other members of our group.

        Raises:
            NotFound: nobody has it. Unavailable: nobody who is reached. Misbehaved: what is
                offered is not what was sealed.
        """
        at = self._at
        root = at.book.state_root(at.group, round)

        async def adopt(file: Path) -> None:
            await at.engine.run(lambda: at.state.adopt(at.checkpoints, round, file, root))

        await take_file(
            SharedFile(at.peers, "checkpoint", at.group, round),
            at.folder / "download",
            adopt,
            most_bytes=at.book.record.spec.memory_bytes,  # of a peer; the state is a part of that
            tell=telling_about(at.tell, step=round, stage=at.group),
        )

    async def _rebuild(self) -> None:
        """Replace a state that the others do not have: checkpoint, then buckets.

        Raises:
            Unavailable: a bucket cannot be had now. InvariantBroken: it is neither theirs nor,
                again, ours.
        """
        last, every = self._at.applied, self._every
        before = self._at.roots.state
        newest = last // every * every
        oldest = max(0, newest - (REBUILD_FROM - 1) * every)
        for number in range(newest, oldest - 1, -every):
            round = StepNumber(number)
            if round and await self._is_restored(round):
                break
        else:
            round = StepNumber(0)
            await self._at.build(self._at.group)
        self._at.book.keep_rebuilt(round)
        await self._loaded(round)
        while self._at.applied < last:
            await self._apply(self._at.book.rounds[self._at.round])
        if self._sealed_root() == self._at.roots.state:
            self._tell_root("state_rebuilt")
        elif before == self._at.roots.state:
            self._is_disputed = True
            self._tell_root("state_disputed")
        else:
            raise errors.InvariantBroken(
                f"the state after round {last} cannot be computed twice alike"
            )

    async def _is_restored(self, round: StepNumber) -> bool:
        """Whether our own checkpoint, or else one of the others, is the sealed state."""
        state, folder = self._at.state, self._at.checkpoints
        root = self._at.book.state_root(self._at.group, round)
        try:
            own = state.checkpoint(folder, round)
            await self._at.engine.run(lambda: state.adopt(folder, round, own, root))
        except (errors.NotFound, errors.Misbehaved, errors.Malformed):
            try:
                await self._adopt(round)
            except (errors.NotFound, errors.Unavailable, errors.Misbehaved):
                return False
        return True

    # ------------------------------------------------------------------------- what others fetch

    def file(self, group: StageIndex, round: StepNumber) -> Path:
        """Our checkpoint file; raises NotFound."""
        return self._at.state.checkpoint(self._at.folder_of(group) / "checkpoints", round)


def _digests(buckets: Sequence[WorkClaim]) -> Iterator[Digest]:
    return (claim.outputs[0].digest for claim in buckets)


async def _nothing() -> None:
    """A turn of its own, after the one that is under way."""
