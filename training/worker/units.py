"""Units of the step in work: passes forward and backward, and the copies that they leave.

Invariants
- A unit is in the gradient once, as the newest copy that we were asked for: a copy that replaces
  another one has a higher attempt, and the other is subtracted first.
- The same task has the same result; nothing is computed twice for it.
- A unit that a GradCommit binds is never changed.

A copy's tensors are on disk (`tensors`), never in memory between two passes, but for the graphs
that the compute keeps. What is lost from the gradient (a tensor that was not finite, a file) is
counted again from there when the unit is to be committed to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber, UnitId
from contracts.terms.messages import TensorHeader, TensorKind, UnitLeaf
from training.transport.calls import Held, Result, Task
from training.worker.ports import Passed, Sent
from training.worker.station import Station
from training.worker.tensors import Kept
from training.worker.turns import Rank

T = TypeVar("T")


@dataclass(frozen=True)
class UnitCopy:
    """A unit as we computed it; while it is not complete, its backward pass is still to come."""

    attempt: int
    leaf: UnitLeaf
    is_complete: bool


class Units:
    """The copies of one step."""

    def __init__(self, station: Station) -> None:
        self._at = station
        self._copies: dict[UnitId, UnitCopy] = {}
        self.worked_in = StepNumber(0)  # the newest step of which we began a pass, whatever it gave

    def begin_step(self) -> None:
        """Forget all copies but those that a GradCommit of the step in work binds."""
        bound = (leaf for commit in self._at.book.commits for leaf in commit.leaves.leaves)
        self._copies = {leaf.unit: UnitCopy(0, leaf, is_complete=True) for leaf in bound}

    def complete(self) -> frozenset[UnitId]:
        """Units of this step that are committed to, or can be."""
        return frozenset(unit for unit, copy in self._copies.items() if copy.is_complete)

    def leaf(self, unit: UnitId) -> UnitLeaf:
        """What we say of a complete unit."""
        return self._copies[unit].leaf

    def results(self) -> tuple[Result, ...]:
        """All passes of this step that are in a copy which we are not bound to."""
        is_last, committed = self._at.compute.is_last, self._at.book.committed()
        found: list[Result] = []
        for copy in self._copies.values():
            if copy.leaf.unit in committed:
                continue
            about = {"step": self._at.step, "attempt": copy.attempt}
            forward = _forward_part(copy.leaf, is_last)
            found.append(Result(direction="forward", leaf=forward, **about))
            if copy.is_complete and not is_last:
                found.append(Result(direction="backward", leaf=copy.leaf, **about))
        return tuple(found)

    # ----------------------------------------------------------------------------------- passes

    async def forward(self, asked: Task) -> UnitLeaf:
        """The forward pass of a unit; on the last stage both passes.

        Raises:
            Unavailable: we have not come to that step; x is not reached.
            NotFound: nobody has x any more, or the manifest's rows are nowhere.
            Conflict: that step is over, or a newer or committed copy stands against it.
            NotFinite, WrongBytes, Malformed, Refused: see `Compute.forward`.
        """
        self._at.need_step(asked.step)
        if self._known(asked) is not None:
            return _forward_part(self._relabelled(asked), self._at.compute.is_last)
        await self._fetch(asked, asked.x, "y")
        leaf = await self._at.engine.at(Rank.FORWARD, lambda: self._forward(asked))
        return _forward_part(leaf, self._at.compute.is_last)

    async def _forward(self, asked: Task) -> UnitLeaf:
        self._at.need_step(asked.step)
        if self._known(asked) is not None:
            return self._relabelled(asked)  # it was asked for twice at the same time
        step, unit, compute = StepNumber(asked.step), asked.unit, self._at.compute
        await self._make_way(step, unit)

        def pass_forward() -> UnitLeaf:
            passed = compute.forward(step, unit, self._read(step, asked.x))
            return self._sent(asked, passed, dy=None)

        with _naming(asked):
            leaf = await self._pass(unit, pass_forward)
        self._keep(asked, leaf, is_complete=compute.is_last)
        return self._relabelled(asked)

    async def backward(self, asked: Task) -> UnitLeaf:
        """The backward pass of a unit, whose forward pass may have run elsewhere.

        Raises: see `forward`, also of dy.
        """
        self._at.need_step(asked.step)
        if self._known(asked) is not None:
            return self._relabelled(asked)
        if not self._is_kept(asked):
            await self._fetch(asked, asked.x, "y")
        await self._fetch(asked, asked.dy, "dx")
        return await self._at.engine.at(Rank.BACKWARD, lambda: self._backward(asked))

    async def _backward(self, asked: Task) -> UnitLeaf:
        self._at.need_step(asked.step)
        if self._known(asked) is not None:
            return self._relabelled(asked)
        step, unit, compute = StepNumber(asked.step), asked.unit, self._at.compute
        before = self._copies[unit].leaf if self._is_kept(asked) else None
        if before is None:
            await self._make_way(step, unit)

        def pass_backward() -> UnitLeaf:
            if before is not None:
                self._need_form(step, asked.dy, before.y)
            x = self._read(step, asked.x) if before is None else None
            passed = compute.backward(step, unit, x, self._read(step, asked.dy))
            leaf = self._sent(asked, passed, dy=asked.dy)
            if before is not None:
                return leaf.model_copy(update={"y": before.y})
            self._need_form(step, asked.dy, leaf.y)
            return leaf

        with _naming(asked):
            leaf = await self._pass(unit, pass_backward)
        self._keep(asked, leaf, is_complete=True)
        return self._relabelled(asked)

    async def _pass(self, unit: UnitId, work: Callable[[], UnitLeaf]) -> UnitLeaf:
        compute, self.worked_in = self._at.compute, self._at.step
        try:
            return await self._whole(unit, work)
        except errors.TallystickError:
            if unit in compute.units:  # counted, but what came out could not be kept
                await self._drop_gradient(self._at.step, unit)
            raise

    async def _whole(self, unit: UnitId, work: Callable[[], T]) -> T:
        """Do something to the gradient that may break in the middle, and then leaves none.

        Raises:
            Unavailable: the device has no memory left, or failed. Whatever of ours `work` raises.
        """
        try:
            return await self._at.engine.run(work)
        except (RuntimeError, MemoryError) as error:  # of torch: half of a unit may be counted
            await self._drop_gradient(self._at.step, unit)
            raise errors.Unavailable(f"a pass broke off: {error}") from error

    async def evaluate(self, asked: Task) -> UnitLeaf:
        """One group of validation rows through the state after `asked.step`.

        Raises:
            Unavailable: we have not come to that state; x is not reached.
            Conflict: that state is gone. Refused: there is no such group.
        """
        self._need_state(asked.step)
        await self._fetch(asked, asked.x, "y")
        return await self._at.engine.at(Rank.FORWARD, lambda: self._evaluate(asked))

    async def _evaluate(self, asked: Task) -> UnitLeaf:
        self._need_state(asked.step)
        step, compute = StepNumber(asked.step), self._at.compute

        def pass_forward() -> UnitLeaf:
            passed = compute.evaluate(asked.unit, self._read(step, asked.x))
            return self._sent(asked, passed, dy=None)

        return await self._at.engine.run(pass_forward)

    def _need_state(self, step: int) -> None:
        if step > self._at.applied:
            raise errors.Unavailable(f"the state after step {step} is not here yet")
        if step < max(1, self._at.book.updated(self._at.applied)):  # validation follows a seal
            raise errors.Conflict(
                f"the state after step {step} is gone, this is {self._at.applied}"
            )

    # -------------------------------------------------------------------------- what is known

    def _known(self, asked: Task) -> UnitLeaf | None:
        """What we have answered to this question before.

        Raises:
            Conflict: a copy between other tensors stands against it.
        """
        copy = self._copies.get(asked.unit)
        if copy is None:
            return None
        same_x = asked.x is None or asked.x.digest == copy.leaf.x
        is_answered = asked.direction == "forward" or (
            copy.is_complete and (asked.dy is None or asked.dy.digest == copy.leaf.dy)
        )
        if same_x and is_answered:
            self._renew(asked, copy)
            return copy.leaf
        if asked.unit in self._at.book.committed():
            raise errors.Conflict(f"unit {asked.unit} is committed to, as another copy")
        is_next = same_x and not copy.is_complete  # the backward pass of this very copy
        if not is_next and asked.attempt <= copy.attempt:
            raise errors.Conflict(
                f"unit {asked.unit} was asked for as attempt {copy.attempt} already"
            )
        return None

    def _renew(self, asked: Task, copy: UnitCopy) -> None:
        """The same copy under a higher attempt: tasks and headers speak of the newest."""
        if asked.attempt <= copy.attempt or asked.unit in self._at.book.committed():
            return
        step, sign = StepNumber(asked.step), self._at.session.sign
        for name in (copy.leaf.y, copy.leaf.dx):
            if self._at.tensors.has(step, name):
                self._at.tensors.renew(step, name, asked.attempt, sign)
        self._copies[asked.unit] = replace(copy, attempt=asked.attempt)

    def _is_kept(self, asked: Task) -> bool:
        """Whether the graph that the compute keeps is that of the pass to go back through."""
        copy = self._copies.get(asked.unit)
        if copy is None or copy.is_complete or not self._at.compute.keeps(asked.unit):
            return False
        return asked.x is None or asked.x.digest == copy.leaf.x

    def _keep(self, asked: Task, leaf: UnitLeaf, *, is_complete: bool) -> None:
        self._copies[asked.unit] = UnitCopy(asked.attempt, leaf, is_complete)
        self._at.tell(
            "unit_done" if is_complete else "unit_forward",
            step=asked.step,
            stage=self._at.stage,
            unit=asked.unit,
            loss=leaf.loss,
        )

    def _relabelled(self, asked: Task) -> UnitLeaf:
        """The leaf with the digests that the neighbours really used (docs/protocol.md 3.4)."""
        copy = self._copies[asked.unit]
        used = {"y": asked.y, "dx": asked.dx}
        other = {
            name: digest
            for name, digest in used.items()
            if digest not in (ZERO_DIGEST, getattr(copy.leaf, name))
        }
        if not other or asked.unit in self._at.book.committed():
            return copy.leaf
        self._at.tell(
            "redo_differs",  # what we computed is not what the peer before us had sent
            step=asked.step,
            stage=self._at.stage,
            unit=asked.unit,
            tensors=" ".join(other),
        )
        self._copies[asked.unit] = replace(copy, leaf=copy.leaf.model_copy(update=other))
        return self._copies[asked.unit].leaf

    # ------------------------------------------------------------------------------- the gradient

    async def _make_way(self, step: StepNumber, unit: UnitId) -> None:
        """Nothing of an older copy is left, in the gradient or as a graph."""
        await self.subtract(step, unit)
        self._at.compute.forget(unit)
        self._copies.pop(unit, None)

    async def subtract(self, step: StepNumber, unit: UnitId) -> None:
        """Take a complete copy out of the gradient, if it is in; the copy stays as it is."""
        compute = self._at.compute
        if unit not in compute.units:
            return
        leaf = self._copies[unit].leaf
        try:
            await self._whole(unit, lambda: compute.subtract(step, unit, *self._ends(step, leaf)))
        except (errors.NotFound, errors.Unavailable, errors.Misbehaved) as error:
            self._at.tell("not_subtracted", step=step, unit=unit, reason=error.message)
            await self._drop_gradient(step, unit)

    async def _drop_gradient(self, step: StepNumber, unit: UnitId) -> None:
        """Begin the gradient again: units are counted anew, from disk, when we commit to them."""
        self._at.tell("gradient_dropped", step=step, unit=unit)
        await self._at.engine.run(self._at.compute.begin_step)

    async def count(self, step: StepNumber, unit: UnitId) -> None:
        """Add a complete copy to the gradient, if it is not in.

        Raises:
            NotFound, Unavailable, WrongBytes, NotFinite: one of its tensors is lost or spoilt.
        """
        compute = self._at.compute
        if unit in compute.units:
            return
        compute.forget(unit)
        leaf = self._copies[unit].leaf
        await self._whole(unit, lambda: compute.backward(step, unit, *self._ends(step, leaf)))

    def forget(self, unit: UnitId) -> None:
        """A complete copy cannot be counted any more."""
        self._copies.pop(unit, None)

    def _ends(self, step: StepNumber, leaf: UnitLeaf) -> tuple[bytes | None, bytes | None]:
        """x and dy of a copy, as the compute takes them."""
        compute, tensors = self._at.compute, self._at.tensors
        x = None if compute.is_first else tensors.get(step, leaf.x).data
        dy = None if compute.is_last else tensors.get(step, leaf.dy).data
        return x, dy

    # ------------------------------------------------------------------------------------ tensors

    async def _fetch(self, asked: Task, held: Held | None, kind: TensorKind) -> None:
        """Have a tensor that a neighbouring stage sent, with its header, on disk."""
        step = StepNumber(asked.step)
        if held is None or self._at.tensors.has(step, held.digest):
            return
        sender = self._at.stage + (-1 if kind == "y" else 1)
        wanted = (step, sender, asked.unit, kind, self._at.rules.boundary_codec)

        def check(header: TensorHeader) -> None:
            found = (header.step, header.stage, header.unit, header.tensor, header.codec)
            if found != wanted:
                raise errors.Malformed(f"a tensor of {found}, wanted {wanted}")

        kept = await self._at.peers.fetch_tensor(held, step, check)
        await self._at.engine.run_io(lambda: self._at.tensors.put(kept))

    def _read(self, step: StepNumber, held: Held | None) -> bytes | None:
        return None if held is None else self._at.tensors.get(step, held.digest).data

    def _sent(self, asked: Task, passed: Passed, *, dy: Held | None) -> UnitLeaf:
        """Bind ourselves to what came out of a pass, keep it, and say what it was made of.

        Raises:
            WrongBytes: what went in has another dtype or shape than its header says.
            Conflict, Unavailable: see `Tensors.put`.
        """
        if asked.x is not None and passed.x != asked.x.digest:
            raise errors.WrongBytes(
                "x is not of the shape that its sender says", actual=passed.x.hex()
            )
        return UnitLeaf(
            unit=asked.unit,
            x=passed.x,
            y=self._bound(asked, "y", passed.y),
            dy=ZERO_DIGEST if dy is None else dy.digest,
            dx=self._bound(asked, "dx", passed.dx),
            loss=passed.loss,
        )

    def _need_form(self, step: StepNumber, dy: Held | None, y: Digest) -> None:
        """Refuse a dy that its sender has signed as of another dtype or shape than our y.

        The compute reads its bytes as of that shape, so a leaf would name what was not computed.
        """
        if dy is None:
            return
        ours, theirs = (self._at.tensors.header(step, name) for name in (y, dy.digest))
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise errors.WrongBytes(
                "dy is not of the shape that its sender says", actual=str(theirs.shape)
            )

    def _bound(self, asked: Task, kind: TensorKind, sent: Sent | None) -> Digest:
        if sent is None:
            return ZERO_DIGEST
        header = TensorHeader(
            job=self._at.book.record.job,
            step=StepNumber(asked.step),
            stage=self._at.stage,
            unit=asked.unit,
            attempt=asked.attempt,
            tensor=kind,
            dtype=sent.dtype,
            shape=sent.shape,
            codec=self._at.rules.boundary_codec,
            tensor_digest=sent.digest,
        )
        self._at.tensors.need_unsent(header)
        self._at.tensors.put(Kept(self._at.session.sign(header), sent.data))
        return sent.digest


@contextmanager
def _naming(asked: Task) -> Iterator[None]:
    """An error of a tensor that came in names it: it is whoever sent it that is to blame."""
    try:
        yield
    except (errors.Malformed, errors.NotFinite, errors.WrongBytes) as error:
        held = asked.dy or asked.x
        if held is not None:
            error.data.setdefault("digest", held.digest.hex())
        raise


def _forward_part(leaf: UnitLeaf, is_last: bool) -> UnitLeaf:
    """What a forward pass answers, also when the backward pass has been here since."""
    return leaf if is_last else leaf.model_copy(update={"dy": ZERO_DIGEST, "dx": ZERO_DIGEST})
