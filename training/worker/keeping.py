"""Work of sealed steps on our disk: weights are added, and goes what `Retention` lets go.

Invariants
- The weights after step s are here as long as anything of step s + 1 is, which was computed on
  them; those of our present state always. Who cannot write them says so and works on: then others
  audit in our place.
- Without checking nothing is kept, and nothing is written.
- What goes, goes right after a seal was applied; what is wanted at that moment stays, as far as it
  is within `training.disk.kept_disk`. Above that goes first what others have too, from the oldest
  step on: tensors that our audits took, then parts of others that we summed or audited. Our own
  work, without which we may lose our pay, goes last, and `kept_disk` is made for all of it.
Layout: `weights/<step>.weights`, of the state after that step.
"""

import os
import shutil
from collections.abc import Collection
from functools import partial
from itertools import chain
from pathlib import Path

from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from training.disk import MOST_STEPS, kept_disk
from training.transport.calls import WeightsView
from training.worker.retention import Needed, Retention, retention_of
from training.worker.served import ServedFiles
from training.worker.station import Station
from training.worker.tensors import Tensors

_SUFFIX = ".weights"


class Keeping:
    """The policy of one lease, and the files under it."""

    def __init__(self, station: Station) -> None:
        self._at = station
        self._served = ServedFiles(station.engine, most=MOST_STEPS)
        self.retention = retention_of(station.rules)
        self.most_bytes = kept_disk(station.book.record.spec)
        """Of sealed steps; 0: no step of an unchecked job is meant to stay, none is counted."""
        self._narrowed: dict[StepNumber, Needed] = {}  # on disk too

    # -------------------------------------------------------------------------- what draws decide

    def settled_before(self, step: StepNumber) -> None:
        """No draw of a step before this one is open: their work may go."""
        self.retention = self.retention.settled_before(step)

    def narrow(
        self, step: StepNumber, units: Collection[ItemNumber], commits: Collection[Digest]
    ) -> None:
        """The beacon of `step` is known: only this of it may still be asked for.

        Args:
            step: A sealed one.
            units: Of drawn peer-steps here and in the stages beside: their x, y, dy and dx.
            commits: Whose parts are needed: drawn ones, and all of a drawn sum.
        """
        self.retention = self.retention.narrowed(step, units, commits)

    # --------------------------------------------------------------------------- around a new state

    async def keep_weights(self) -> None:
        """Write the weights of our present state, if work on them can be drawn."""
        at = self._at
        if not self.retention.most:
            return
        file, roots, compute = self._file(at.applied), at.roots, at.compute
        try:
            await at.engine.run(lambda: compute.save_weights(file, roots))
        except Unavailable as error:
            at.tell("weights_not_kept", step=at.applied, stage=at.stage, reason=error.message)

    async def drop(self) -> None:
        """Let go of sealed steps what need not stay, and tell of what stays."""
        at, retention, applied = self._at, self.retention, self._at.applied
        kept, crowded = await at.engine.run_io(lambda: self._drop(retention, applied))
        if not retention.most:
            return
        about = {"step": applied, "stage": at.stage}
        if crowded:
            at.tell("kept_too_long", **about, dropped=" ".join(map(str, crowded)))
        size = await at.engine.run_io(self._num_bytes)
        at.tell("work_kept", **about, steps=len(kept), oldest=min(kept, default=0), bytes=size)

    def _drop(
        self, retention: Retention, applied: StepNumber
    ) -> tuple[tuple[StepNumber, ...], list[StepNumber]]:
        """Steps that stay, and those that would have if there were room."""
        here = [step for step in self._steps_here() if step <= applied] if retention.most else []
        kept = retention.kept(here)
        self._narrow({step: retention.needed[step] for step in kept if step in retention.needed})
        self._drop_but(applied, kept)
        kept = self._with_room(applied, kept)
        crowded = [step for step in retention.wanted(here) if step not in kept]
        return kept, crowded

    def _with_room(
        self, applied: StepNumber, kept: tuple[StepNumber, ...]
    ) -> tuple[StepNumber, ...]:
        """Steps that stay when there is room, for which others' work goes first."""
        lets_go = chain(
            (partial(self._at.audited.drop, applied, kept[n:]) for n in range(1, len(kept) + 1)),
            (partial(self._at.store.drop_parts_of_others, step) for step in kept),
        )
        while kept and 0 < self.most_bytes < self._num_bytes():
            if (let_go := next(lets_go, None)) is not None:
                let_go()
            else:
                kept = kept[1:]
                self._drop_but(applied, kept)
        return kept

    def _drop_but(self, applied: StepNumber, kept: Collection[StepNumber]) -> None:
        self._at.store.drop_parts(applied, kept)
        for tensors in self._tensors:
            tensors.drop(applied, kept)
        self._drop_weights(applied, kept)

    def _narrow(self, needed: dict[StepNumber, Needed]) -> None:
        for step, what in needed.items():
            if self._narrowed.get(step) != what:
                for tensors in self._tensors:
                    tensors.narrow(step, what.units)
                self._at.store.narrow(step, what.commits)
        self._narrowed = needed

    def _steps_here(self) -> frozenset[StepNumber]:
        after = (StepNumber(step + 1) for step in self._weights_here())
        return frozenset(after) | self._at.store.steps() | self._at.tensors.steps()

    @property
    def _tensors(self) -> tuple[Tensors, ...]:
        return self._at.tensors, self._at.audited

    def _weights_here(self) -> list[StepNumber]:
        names = (path.stem for path in self._folder.glob(f"*{_SUFFIX}"))
        return [StepNumber(int(name)) for name in names if name.isdecimal()]

    def _drop_weights(self, applied: StepNumber, kept: Collection[StepNumber]) -> None:
        for step in self._weights_here():
            if step < applied and step + 1 not in kept:
                self._file(step).unlink(missing_ok=True)

    def clear(self) -> None:
        """The job is over: nothing of its steps is asked for any more."""
        self._at.store.drop_parts(self._at.applied)
        for tensors in self._tensors:
            tensors.drop(self._at.applied)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _num_bytes(self) -> int:
        tops = (self._at.folder / name for name in ("weights", "tensors", "audited", "parts"))
        return sum(map(_num_bytes, tops))

    # ------------------------------------------------------------------------- what others fetch

    @property
    def _folder(self) -> Path:
        return self._at.folder / "weights"

    def _file(self, step: StepNumber) -> Path:
        return self._folder / f"{step:08d}{_SUFFIX}"

    async def weights_before(self, step: StepNumber) -> Path:
        """File of the weights that `step` was computed on; raises NotFound."""
        path = self._file(StepNumber(step - 1))
        if not path.exists():
            raise NotFound(f"the weights of step {step} are not kept")
        return path

    async def view(self, stage: StageIndex, step: StepNumber) -> WeightsView:
        """What our weights after `step` are called, in their state and as a file.

        Raises:
            NotFound: they are not kept here. Malformed, UnknownVersion: the file is damaged.
        """
        path, compute = self._served_file(stage, step), self._at.compute
        view = await self._served.view(path)
        roots = await self._at.engine.run_io(lambda: compute.roots_of_weights(path))
        return WeightsView(
            digest=view.digest,
            num_bytes=view.num_bytes,
            weights_root=roots.weights,
            moments_root=roots.moments,
            counter=roots.counter,
        )

    async def range(self, stage: StageIndex, step: StepNumber, start: int, end: int) -> bytes:
        """Bytes [start, end) of that file; raises NotFound, Malformed."""
        return await self._served.range(self._served_file(stage, step), start, end)

    def _served_file(self, stage: StageIndex, step: StepNumber) -> Path:
        if stage != self._at.stage:
            raise NotFound(f"this is stage {self._at.stage}")
        return self._file(step)


def _num_bytes(folder: Path) -> int:
    """Of all files under a folder, some of which may go meanwhile."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += _num_bytes(Path(entry)) if entry.is_dir() else entry.stat().st_size
    except FileNotFoundError:
        return total
    return total
