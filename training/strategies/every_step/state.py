"""The state of one stage after a seal: weights, both moments, counter, and their files."""

from pathlib import Path

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest
from training.stages.checkpoint import (
    adopt_checkpoint,
    checkpoint_path,
    list_checkpoints,
    load_newest,
    roots_of_weights,
    save_checkpoint,
    save_weights,
)
from training.stages.stage import Stage
from training.stages.torch_free import StateRoots
from training.strategies.port import Group, RoundNumber


class StageState:
    """See `port.State`; the gradient of the round in work lies in the same `stage`."""

    def __init__(self, group: Group, stage: Stage, rows_per_item: int) -> None:
        self.group, self.stage, self._num_rows = group, stage, rows_per_item

    def roots(self) -> StateRoots:
        """See `State.roots`."""
        return self.stage.roots()

    def measure(self, seed: int) -> None:
        """See `State.measure`."""
        self.stage.measure(seed, self._num_rows)

    def save(self, folder: Path, round: RoundNumber) -> None:
        """See `State.save`."""
        save_checkpoint(self.stage, folder, round)

    def restore(self, folder: Path) -> RoundNumber:
        """See `State.restore`."""
        return RoundNumber(load_newest(self.stage, folder))

    def adopt(self, folder: Path, round: RoundNumber, file: Path, root: Digest | None) -> None:
        """See `State.adopt`."""
        adopt_checkpoint(self.stage, folder, round, file, sealed_root=root)

    def checkpoint(self, folder: Path, round: RoundNumber) -> Path:
        """See `State.checkpoint`."""
        path = checkpoint_path(folder, round)
        if not path.exists():
            raise NotFound(f"no checkpoint of round {round}")
        return path

    def oldest_kept(self, folder: Path) -> RoundNumber:
        """See `State.oldest_kept`."""
        kept = list_checkpoints(folder)
        return RoundNumber(int(kept[0].stem.removeprefix("step-")) if len(kept) > 1 else 0)

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """See `State.save_weights`."""
        save_weights(self.stage, file, roots)

    def roots_of_weights(self, file: Path) -> StateRoots:
        """See `State.roots_of_weights`."""
        return roots_of_weights(file)
