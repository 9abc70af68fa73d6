"""The state of our stage: built, resumed, loaded from others, moved on by seals, checked, rebuilt.

Invariants
- Only bytes whose digests a valid seal names reach the weights, each seal's once.
- A state that came from others has the root that the members of the stage had committed to. The
  newest one may have no such seal yet: then it is compared as soon as there is one.
- Whoever differs from the others finds out by the next seal and builds the state again, from sealed
  bytes. Who comes to the same state as before is right by derivation, says so and goes on; who
  comes to a third one cannot compute, which ends the process.

A newcomer (its state is older than `state_step` of `Joined`) stores seals without applying them,
loads a checkpoint of that step from the members of its stage, and applies from there.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from contracts.governance.claims import SealedPay
from contracts.governance.vesting import forfeited_by
from contracts.terms import errors
from contracts.terms.beacons import Beacons, check_beacon
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import Message, StepBeacon
from contracts.terms.signatures import Signed
from training.telling import telling_about
from training.transport.calls import StateView
from training.worker.averages import Averages
from training.worker.book import SealedStep, last_seal
from training.worker.download import Download, holders_of
from training.worker.keeping import Keeping
from training.worker.served import ServedFiles
from training.worker.shared_files import CheckpointFile
from training.worker.station import ComputeFor, Station
from training.worker.turns import Rank
from training.worker.units import Units

_NEVER = StepNumber(0)
REBUILD_FROM = 4  # newest checkpoint steps that are tried, beside the initial state


class States:
    """Moves the state of a `Station`."""

    def __init__(
        self,
        station: Station,
        units: Units,
        averages: Averages,
        keeping: Keeping,
        compute_for: ComputeFor,
        beacons: Beacons | None = None,
    ) -> None:
        self._at, self._units, self._averages = station, units, averages
        self._keeping, self._compute_for, self._beacons = keeping, compute_for, beacons
        self._load_from = self._joined_in = _NEVER
        self._left_out = 0  # see `SealedPay.left_out`
        self._is_disputed = False
        """We have built our state again, and others still bind themselves to another one."""
        self._served = ServedFiles(station.engine)
        self.outdated = asyncio.Event()
        """Set when nobody has the checkpoint that we were to load: join again, for a newer one."""

    # -------------------------------------------------------------------------------- beginning

    async def resume(self) -> None:
        """Build the state again as far as it is on our disk: checkpoint, then averages.

        What is lacking comes with the seals that the coordinator hands us again.

        Raises:
            Conflict: the journal was lost or replaced.
            InvariantBroken: the state differs from the one that was there before.
        """
        await self._keep_pay()
        if self._at.book.stage is None:
            return
        await self._build(self._at.book.stage)
        compute, folder = self._at.compute, self._at.checkpoints
        step = await self._at.engine.run(lambda: compute.restore(folder))
        if step > self._at.book.sealed:
            raise errors.Conflict("checkpoints are ahead of the journal: it was lost or replaced")
        await self._move_to(step)
        while self._at.applied < self._at.book.sealed:
            sealed = self._at.book.steps[self._at.step]
            if not all(
                [await self._averages.has(each) for each in sealed.of_stage(self._at.stage)]
            ):
                break
            await self._apply(sealed)
        self._tell_root("resumed")

    async def measure(self, stage: StageIndex, seed: int) -> None:
        """One reference unit in a stage, which is built for it if it is not ours yet.

        Raises:
            Conflict: we are a member of another stage, whose gradient building would lose.
        """

        async def work() -> None:
            if self._at.seat != stage:
                self._need_free_for(stage)
                await self._build(stage)
            await self._at.engine.run(lambda: self._at.compute.measure(seed))

        await self._at.engine.at(Rank.FORWARD, work)

    def _need_free_for(self, stage: StageIndex) -> None:
        ours = self._at.book.record.members.get(self._at.peer, stage)
        if ours != stage:
            raise errors.Conflict(f"this is a member of stage {ours}, not of {stage}")

    async def take_stage(
        self, stage: StageIndex, state_step: StepNumber, *, joined_in: StepNumber = _NEVER
    ) -> None:
        """Work in this stage, from a state that is not older than that after `state_step`.

        `joined_in`: the step in work then. Until it we lag: others may drop what we still lack.
        """

        async def work() -> None:
            if self._at.book.stage != stage:
                await self._at.engine.run_io(self._forget_all)
                self._at.book.keep_stage(stage)
                if self._at.seat == stage:  # it was built to be measured, and is as new
                    self._at.assign_stage(stage, self._at.compute)
                else:
                    await self._build(stage)
                await self._move_to(StepNumber(0))
            elif self._at.seat != stage:
                await self.resume()  # another stage was measured meanwhile
            self._load_from, self._joined_in = state_step, joined_in
            self.outdated.clear()

        await self._at.engine.at(Rank.STEP, work)

    async def _build(self, stage: StageIndex) -> None:
        compute = await self._at.engine.run(lambda: self._compute_for(stage))
        self._at.assign_stage(stage, compute)

    def _forget_all(self) -> None:
        """Everything on disk but the journal is of another stage."""
        self._at.store.drop_all()
        shutil.rmtree(self._at.checkpoints, ignore_errors=True)
        for name in ("tensors", "weights"):
            shutil.rmtree(self._at.folder / name, ignore_errors=True)

    async def _move_to(self, step: StepNumber) -> None:
        await self._at.note_state(step)
        self._units.begin_step()
        await self._keeping.keep_weights()

    # ------------------------------------------------------------------------------------ seals

    async def take_seal(
        self, items: list[Kept], all_applied: StepNumber
    ) -> tuple[StepNumber, Digest]:
        """Check a seal, store it with everything under it, and apply it.

        Args:
            items: What is under the seal, in order, itself last.
            all_applied: Averages of later steps may be fetched from us.

        Returns:
            Its step, and the state root that it led to; zero while the state is still to be loaded.

        Raises:
            InvalidSeal, Equivocation, BadSignature, Malformed, Conflict: see `read_seal`.
            Unavailable: an average that it names, or a checkpoint, cannot be fetched.
        """
        self._at.all_applied = all_applied
        return await self._at.engine.at(Rank.STEP, lambda: self._take(items))

    async def stored(self) -> None:
        """Returns when the seal that is being applied is, its checkpoint on disk included."""
        await self._at.engine.at(Rank.STEP, _nothing)

    async def _take(self, items: list[Kept]) -> tuple[StepNumber, Digest]:
        stage, step = self._at.stage, last_seal(items).message.step
        if (seal := self._at.book.read_seal(items)) is not None:
            if step > self._load_from:
                await self._hold(step, items)
            for message in _messages(items):
                if isinstance(message, StepBeacon):
                    await self._check_beacon(message)
            own = {each.signed.message.digest() for each in self._at.book.commits}
            self._at.book.keep_seal(seal)
            self._note_left_out(step, own)
            await self._keep_pay()
            self._at.tell("seal_stored", step=step, stage=stage)
        if self._at.applied < self._load_from:
            if self._at.book.sealed < self._load_from:
                return step, ZERO_DIGEST
            await self._load(self._load_from)
        await self._catch_up()
        return step, self._at.book.roots.get(step, ZERO_DIGEST)

    async def _hold(self, step: StepNumber, items: list[Kept]) -> None:
        try:
            await self._averages.hold_sealed(_messages(items))
        except errors.Unavailable:
            if step < self._joined_in:
                self.outdated.set()  # who joins anew is told of a state that the others have now
            raise

    def _note_left_out(self, step: StepNumber, own: Set[Digest]) -> None:
        """Count the seals in a row that hold none of our work, though we worked.

        A pass is work whatever came of it: a coordinator for whom we work in vain need not ask for
        the backward pass, or for a GradCommit. In steps that we missed we did nothing.
        """
        newest = self._at.book.history.newest
        if newest is not None and own & newest.counted:
            self._left_out = 0
        elif own or step == self._units.worked_in:
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
        check_beacon(said, beacon, self._at.book.steps[said.of].seal.digest())

    async def _catch_up(self) -> None:
        """Apply what is sealed, after our state was compared with that of the others."""
        if (root := self._sealed_root()) is not None and root != self._at.roots.state:
            self._tell_root("state_differs", sealed_root=root)
            if not self._is_disputed:
                await self._rebuild()
        while self._at.applied < self._at.book.sealed:
            await self._apply(self._at.book.steps[self._at.step])

    def _tell_root(self, event: str, **more: object) -> None:
        self._at.tell(
            event,
            step=self._at.applied,
            stage=self._at.stage,
            state_root=self._at.roots.state,
            **more,
        )

    def _sealed_root(self) -> Digest | None:
        return self._at.book.state_root(self._at.stage, self._at.applied)

    async def _apply(self, sealed: SealedStep) -> None:
        step, norm, compute = sealed.seal.step, sealed.seal.gradient_norm, self._at.compute
        if own := sealed.of_stage(self._at.stage):
            chunks = [await self._averages.sealed(chunk) for chunk in own]
            await self._update(lambda: compute.apply(chunks, norm))
        else:
            await self._at.engine.run(compute.begin_step)
        await self._move_to(step)
        self._at.book.keep_applied(step, self._at.roots.state)
        self._tell_root("seal_applied", weights_root=self._at.roots.weights)
        self._keeping.settled_before(self._at.book.oldest_needed)
        if not sealed.has_work:
            self._keeping.narrow(step, (), ())
        self._narrow()
        await self._keeping.drop()
        await self._checkpoint(step, is_last=sealed.seal.last)
        self._at.sealed_changes.mark()

    def _narrow(self) -> None:
        """Of steps whose beacon is known, what open draws may still ask us for."""
        at, checking = self._at, self._at.book.record.checking
        if checking.oldest_needed is None:
            return  # nobody is drawn, or nothing is open: `settled_before` says the rest
        for number in range(checking.oldest_needed, at.book.sealed + 1):
            step = StepNumber(number)
            if (names := checking.needed_of(step)) is not None:
                self._keeping.narrow(step, *at.book.work.beside(at.stage, at.chunking, names))

    async def _update(self, work: Callable[[], None]) -> None:
        """Change the state; one that is half changed is nobody's.

        Raises:
            InvariantBroken: the device failed, or is full; a new process begins from disk.
        """
        try:
            await self._at.engine.run(work)
        except (RuntimeError, MemoryError) as error:
            raise errors.InvariantBroken(f"an update broke off: {error}") from error

    async def _checkpoint(self, step: StepNumber, *, is_last: bool) -> None:
        if not (step % self._at.batch.checkpoint_every == 0 or is_last):
            return
        compute, folder = self._at.compute, self._at.checkpoints
        await self._at.engine.run(lambda: compute.save(folder, step))
        kept = await self._at.engine.run(lambda: compute.oldest_kept(folder))
        unwanted = min(kept, self._at.all_applied)
        await self._at.engine.run_io(lambda: self._at.store.drop_chunks(unwanted))
        self._at.tell("checkpoint_stored", step=step, stage=self._at.stage)

    # --------------------------------------------------------------------- states of other members

    async def _load(self, wanted: StepNumber) -> None:
        """Take over a checkpoint of this step, or of a newer one that is sealed here.

        Raises:
            Unavailable: none can be had now. Misbehaved: what is offered is not what was sealed.
        """
        newer = range(wanted, self._at.book.sealed + 1, self._at.batch.checkpoint_every)
        for number in newer:
            step = StepNumber(number)
            try:
                await self._adopt(step)
            except errors.NotFound:
                continue  # its holders have dropped it meanwhile
            await self._loaded(step)
            return
        self.outdated.set()
        raise errors.Unavailable(f"no member has a checkpoint of step {wanted} any more")

    async def _loaded(self, step: StepNumber) -> None:
        await self._move_to(step)
        left = self._at.folder / "download"  # of files that turned out to be wrong ones
        await self._at.engine.run_io(lambda: shutil.rmtree(left, ignore_errors=True))
        self._at.book.keep_applied(step, self._at.roots.state)
        self._tell_root("state_loaded")

    async def _adopt(self, step: StepNumber) -> None:
        """Take over the state after `step` from the members of our stage.

        Raises:
            NotFound: nobody has it. Unavailable: nobody who is reached. Misbehaved: what is
                offered is not what was sealed.
        """
        error: errors.Misbehaved | errors.Unavailable | errors.Refused | None = None
        most = self._at.book.record.spec.memory_bytes  # of a peer; the state is a part of that
        file = CheckpointFile(self._at.peers, self._at.stage, step)
        for view, holders in await holders_of(file, most):
            # All together, then each alone: one who lies then spoils his own file only.
            for group in (holders, *([holder] for holder in holders if len(holders) > 1)):
                try:
                    await self._adopt_from(file, view, group)
                    return
                except (errors.Misbehaved, errors.Unavailable, errors.Refused) as failure:
                    self._at.tell(
                        "state_not_loaded",
                        step=step,
                        stage=self._at.stage,
                        code=failure.code,
                        reason=failure.message,
                    )
                    error = failure
        assert error is not None  # there was a holder
        raise error if not isinstance(error, errors.Refused) else errors.Unavailable(error.message)

    async def _adopt_from(
        self, wanted: CheckpointFile, view: StateView, holders: Sequence[PeerId]
    ) -> None:
        at, step = self._at, wanted.step
        root = at.book.state_root(at.stage, step)
        folder = at.folder / "download" / f"{step:08d}-{view.digest.hex()}"
        tell = telling_about(at.tell, step=step, stage=at.stage)
        file = await Download(wanted, view, folder, tell).file(holders)
        try:
            await at.engine.run(lambda: at.compute.adopt(at.checkpoints, step, file, root))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _rebuild(self) -> None:
        """Replace a state that the others do not have: checkpoint, then averages.

        Raises:
            Unavailable: an average cannot be had now. InvariantBroken: it is neither theirs nor,
                again, ours.
        """
        last, every = self._at.applied, self._at.batch.checkpoint_every
        before = self._at.roots.state
        newest = last // every * every
        oldest = max(0, newest - (REBUILD_FROM - 1) * every)
        for number in range(newest, oldest - 1, -every):
            step = StepNumber(number)
            if step and await self._is_restored(step):
                break
        else:
            step = StepNumber(0)
            await self._build(self._at.stage)
        self._at.book.keep_rebuilt(step)
        await self._loaded(step)
        while self._at.applied < last:
            await self._apply(self._at.book.steps[self._at.step])
        if self._sealed_root() == self._at.roots.state:
            self._tell_root("state_rebuilt")
        elif before == self._at.roots.state:
            self._is_disputed = True
            self._tell_root("state_disputed")
        else:
            raise errors.InvariantBroken(
                f"the state after step {last} cannot be computed twice alike"
            )

    async def _is_restored(self, step: StepNumber) -> bool:
        """Whether our own checkpoint, or else one of the others, is the sealed state."""
        compute, folder = self._at.compute, self._at.checkpoints
        root = self._at.book.state_root(self._at.stage, step)
        try:
            own = compute.checkpoint(folder, step)
            await self._at.engine.run(lambda: compute.adopt(folder, step, own, root))
        except (errors.NotFound, errors.Misbehaved, errors.Malformed):
            try:
                await self._adopt(step)
            except (errors.NotFound, errors.Unavailable, errors.Misbehaved):
                return False
        return True

    # ------------------------------------------------------------------------- what others fetch

    async def view(self, stage: StageIndex, step: StepNumber) -> StateView:
        """Digest and size of our checkpoint file; raises NotFound."""
        return await self._served.view(self._file(stage, step))

    async def range(self, stage: StageIndex, step: StepNumber, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Malformed."""
        return await self._served.range(self._file(stage, step), start, end)

    def _file(self, stage: StageIndex, step: StepNumber) -> Path:
        if stage != self._at.stage:
            raise errors.NotFound(f"this is stage {self._at.stage}")
        return self._at.compute.checkpoint(self._at.checkpoints, step)


def _messages(items: Sequence[Kept]) -> list[Message]:
    return [item.message for item in items if isinstance(item, Signed)]


async def _nothing() -> None:
    """A turn of its own, after the one that is under way."""
