"""Work of sealed rounds on our disk: weights are added, and goes what `Retention` lets go.

Invariants
- The weights after round r are here as long as anything of round r + 1 is, which was computed on
  them; those of our present state always. Who cannot write them says so and works on: then others
  audit in our place.
- Without checking nothing is kept but shards of pending claims, and no weights are written.
- What goes, goes right after a seal was applied; what is wanted at that moment stays, as far as it
  is within `training.disk.kept_disk`. Above that goes first what others have too, from the oldest
  round on: what our audits took, then shards of others that we reduced. Our own work, without which
  we may lose our pay, goes last, and `kept_disk` is made for all of it.
- Who moves to another group keeps what it did in the old one, in that group's folder.
Layout: `groups/<group>/weights/<round>.weights`, of the state after that round.
"""

import os
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import Digest, StageIndex, StepNumber
from training.disk import MOST_STEPS, kept_disk
from training.transport.calls import FileView
from training.worker.retention import Retention
from training.worker.station import Station
from training.worker.store import EVIDENCE

_SUFFIX = ".weights"


class Keeping:
    """The policy of one lease, and the files under it."""

    def __init__(self, station: Station) -> None:
        self._at = station
        self.most_bytes = kept_disk(station.book.record.spec)
        """Of sealed rounds; 0: no round of an unchecked job is meant to stay, none is counted."""
        self.retention = Retention(MOST_STEPS if self.most_bytes else 0)
        self._narrowed: dict[StepNumber, frozenset[Digest]] = {}  # on disk too
        self._bases: dict[Digest, Path] = {}

    # --------------------------------------------------------------------------- around a new state

    async def keep_weights(self) -> None:
        """Write the weights of our present state, if work on them can be drawn."""
        at = self._at
        if not self.retention.most:
            return
        file, roots, state = self.file(at.group, at.applied), at.roots, at.state
        try:
            await at.engine.run(lambda: state.save_weights(file, roots))
            self._bases[roots.state] = file
        except Unavailable as error:
            at.tell("weights_not_kept", step=at.applied, stage=at.group, reason=error.message)

    async def drop(self) -> None:
        """Let go of sealed rounds what need not stay, and tell of what stays."""
        at, retention, applied = self._at, self.retention, self._at.applied
        kept, crowded = await at.engine.run_io(lambda: self._drop(retention, applied))
        if not retention.most:
            return
        about = {"step": applied, "stage": at.group}
        if crowded:
            at.tell("kept_too_long", **about, dropped=" ".join(map(str, crowded)))
        size = await at.engine.run_io(self._num_bytes)
        at.tell("work_kept", **about, steps=len(kept), oldest=min(kept, default=0), bytes=size)

    def _drop(
        self, retention: Retention, applied: StepNumber
    ) -> tuple[tuple[StepNumber, ...], list[StepNumber]]:
        """Rounds that stay, and those that would have if there were room."""
        here = [round for round in self._rounds_here() if round <= applied]
        kept = retention.kept(here)
        needed = {
            round: what
            for round, what in retention.needed.items()
            if round in kept and round not in retention.pending
        }
        for round, what in needed.items():
            if self._narrowed.get(round) != what:
                self._at.store.narrow(round, what)
        self._narrowed = needed
        self._drop_but(applied, kept)
        kept = self._with_room(applied, kept)
        crowded = [round for round in retention.wanted(here) if round not in kept]
        return kept, crowded

    def _with_room(
        self, applied: StepNumber, kept: tuple[StepNumber, ...]
    ) -> tuple[StepNumber, ...]:
        """Rounds that stay when there is room, for which others' work goes first."""
        store = self._at.store

        def up_to(last: StepNumber, round: StepNumber) -> bool:
            return round > last

        lets_go = chain(
            (
                partial(store.drop, ["audited"], partial(up_to, StepNumber(round)))
                for round in range(kept[0] if kept else 0, applied + 1)
            ),
            (partial(store.drop, ["lent"], partial(up_to, round)) for round in kept),
        )
        while kept and 0 < self.most_bytes < self._num_bytes():
            if (let_go := next(lets_go, None)) is not None:
                let_go()
            else:
                kept = kept[1:]
                self._drop_but(applied, kept)
        return kept

    def _drop_but(self, applied: StepNumber, kept: Collection[StepNumber]) -> None:
        own = [kind for kind in EVIDENCE if kind != "audited"]
        self._at.store.drop(own, lambda round: round > applied or round in kept)
        # By the round in which it was fetched, which is one after that of the work.
        oldest = min(kept, default=applied + 1)
        self._at.store.drop(["audited"], lambda round: round >= oldest)
        state = self._at.book.updated(applied)
        self._at.store.drop(["validation"], lambda round: round >= state)
        for path, round in self._weights_here():
            is_ours = path.parent == self.file(self._at.group, round).parent
            if round + 1 not in kept and not (is_ours and round >= applied):
                path.unlink(missing_ok=True)
        self._bases = {root: path for root, path in self._bases.items() if path.exists()}

    def _rounds_here(self) -> frozenset[StepNumber]:
        after = {StepNumber(round + 1) for _, round in self._weights_here()}
        return self._at.store.rounds() | after

    def _weights_here(self) -> Iterator[tuple[Path, StepNumber]]:
        for path in (self._at.folder / "groups").glob(f"*/weights/*{_SUFFIX}"):
            if path.stem.isdecimal():
                yield path, StepNumber(int(path.stem))

    def clear(self) -> None:
        """The job is over: nothing of its rounds is asked for any more."""
        self._at.store.drop((*EVIDENCE, "validation"), lambda _: False)
        for path, _ in self._weights_here():
            path.unlink(missing_ok=True)

    def _num_bytes(self) -> int:
        folder = self._at.folder
        weights = sum(path.stat().st_size for path, _ in self._weights_here())
        return weights + sum(_num_bytes(folder / kind) for kind in EVIDENCE)

    # ------------------------------------------------------------------------- what others fetch

    def file(self, group: StageIndex, round: StepNumber) -> Path:
        """Of our weights after `round`, if we have any."""
        return self._at.folder_of(group) / "weights" / f"{round:08d}{_SUFFIX}"

    async def weights_of(self, base: Digest) -> Path:
        """File of the weights of the state with this root; raises NotFound."""
        path = self._bases.get(base)
        if path is None or not path.exists():
            path = await self._at.engine.run_io(lambda: self._found(base))
        return path

    def _found(self, base: Digest) -> Path:
        for path, _ in self._weights_here():
            if self._at.state.roots_of_weights(path).state == base:
                self._bases[base] = path
                return path
        raise NotFound("the weights of this state are not kept", digest=base.hex())

    async def view(self, group: StageIndex, round: StepNumber) -> FileView:
        """What our weights after `round` are called, in their state and as a file.

        Raises:
            NotFound: they are not kept here. Malformed, UnknownVersion: the file is damaged.
        """
        path, state = self.file(group, round), self._at.state
        view = await self._at.served.view(path)
        roots = await self._at.engine.run_io(lambda: state.roots_of_weights(path))
        return view.model_copy(update={"state_root": roots.state})


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
