"""The state of one group after a seal, as a checkpoint on disk, and its weights to repeat work on.

A checkpoint holds weights, what is beside them and the counter in one safetensors file. Invariants:
a file under its final name is whole (written aside, fsynced, renamed, folder fsynced), so a kill at
any moment leaves the one before; a state that was read has the root that its file names, and the
root that the caller got from a seal, or it is refused; loading and going on gives the bytes of a
run that was never interrupted; equal states after one step give equal files, so a newcomer takes
pieces of one from several members.

The weights after one step are kept so that work on them can be repeated. Invariants: a file under
its final name is whole while the machine runs (written aside, renamed; not synced, because the
roots tell when a power cut took a part); equal states give equal files, so an auditor takes pieces
of one from several members; weights that were read have the weights root that their file names, and
that root lies under the state root that the caller got from a claim of work.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from contracts.disk import sync
from contracts.terms.errors import Malformed, NotFound, Unavailable, UnknownVersion, WrongBytes
from contracts.terms.ids import Digest
from training.models.parameters import Shape
from training.stages.exact import tensors_root
from training.stages.sealed_state import SealedState
from training.stages.stage import Stage
from training.stages.torch_free import StateRoots
from training.strategies.port import Group, RoundNumber

VERSION = "tallystick.checkpoint.v2"
WEIGHTS_VERSION = "tallystick.weights.v1"
_SUFFIX = ".safetensors"
_ASIDE = ".tmp"
KEPT = 2
T = TypeVar("T")


class StateFiles:
    """See `port.State`: all of it but `measure`."""

    def __init__(self, group: Group, sealed: SealedState, *, repeats_moments: bool = False) -> None:
        """Of a group.

        Args:
            group: Whose state it is.
            sealed: Changes with each seal, and in nothing else.
            repeats_moments: Work goes on from them too, so files of weights have them.
        """
        self.group, self.sealed, self._repeats_moments = group, sealed, repeats_moments

    def roots(self) -> StateRoots:
        """See `State.roots`."""
        return self.sealed.roots()

    # --------------------------------------------------------------------------------- checkpoints

    def save(self, folder: Path, round: RoundNumber) -> None:
        """See `State.save`; drops all but the newest `KEPT` checkpoints."""
        state, path = self.sealed, _path(folder, round)
        about = {"step": round, "counter": state.counter, "state_root": state.roots().state.hex()}
        aside = path.with_suffix(path.suffix + _ASIDE)
        with _writing("checkpoint", path):
            folder.mkdir(parents=True, exist_ok=True)
            save_file(state.weights() | state.moments(), aside, metadata=_metadata(VERSION, about))
            sync(aside)
            os.replace(aside, path)
            sync(folder)
            for old in _list(folder)[:-KEPT]:
                old.unlink(missing_ok=True)

    def load(self, path: Path, root: Digest | None = None) -> RoundNumber:
        """Become the state of a checkpoint, whose root is computed again, and say its round.

        Raises:
            NotFound: no such file.
            Malformed: cut short, altered in its frame, or of another stage.
            UnknownVersion: another program's file.
            WrongBytes: its bytes do not have the root that the file, or `root`, names.
        """
        with _opened(path) as file:
            round, counter, own = _said(file, VERSION, path, _about)
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        try:
            actual = self.sealed.roots_of(tensors, counter).state
        except Malformed as error:
            raise Malformed(f"checkpoint {path}: {error.message}", path=str(path)) from error
        for wanted in (own, root):
            if wanted is not None:
                _need(path, "state", actual, wanted)
        self.sealed.load(tensors, counter)
        return round

    def restore(self, folder: Path) -> RoundNumber:
        """See `State.restore`."""
        for path in reversed(_list(folder)):
            try:
                return self.load(path)
            except (Malformed, WrongBytes):
                continue
        return RoundNumber(0)

    def adopt(self, folder: Path, round: RoundNumber, file: Path, root: Digest | None) -> None:
        """See `State.adopt`."""
        found, path = self.load(file, root), _path(folder, round)
        if found != round:
            raise Malformed(f"a checkpoint of step {found}, wanted {round}", path=str(file))
        with _writing("checkpoint", path):
            folder.mkdir(parents=True, exist_ok=True)
            os.replace(file, path)
            sync(folder)

    def checkpoint(self, folder: Path, round: RoundNumber) -> Path:
        """See `State.checkpoint`."""
        path = _path(folder, round)
        if not path.exists():
            raise NotFound(f"no checkpoint of round {round}")
        return path

    def oldest_kept(self, folder: Path) -> RoundNumber:
        """See `State.oldest_kept`."""
        kept = _list(folder)
        return RoundNumber(int(kept[0].stem.removeprefix("step-")) if len(kept) > 1 else 0)

    # ---------------------------------------------------------------------------- files of weights

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """See `State.save_weights`."""
        about = {  # no step: the files of one state are equal bytes
            "weights": roots.weights.hex(),
            "moments": roots.moments.hex(),
            "counter": roots.counter,
        }
        aside = file.with_suffix(file.suffix + _ASIDE)
        with _writing("weights", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = self.sealed.moments() if self._repeats_moments else {}
            tensors = self.sealed.weights() | beside
            save_file(tensors, aside, metadata=_metadata(WEIGHTS_VERSION, about))
            os.replace(aside, file)

    def roots_of_weights(self, file: Path) -> StateRoots:
        """See `State.roots_of_weights`; also raises UnknownVersion: another program's file."""
        return roots_of_weights(file)


def roots_of_weights(path: Path) -> StateRoots:
    """What a file of weights says of its state; compares nothing. Raises as `load_weights`."""
    return _read(path, ())[0]


class StageState(StateFiles):
    """Of a stage that trains: the gradient of the round in work lies in it too."""

    def __init__(self, group: Group, stage: Stage, rows_per_item: int) -> None:
        super().__init__(group, stage)
        self.stage, self._num_rows = stage, rows_per_item

    def measure(self, seed: int) -> None:
        """See `State.measure`."""
        self.stage.measure(seed, self._num_rows)


def load_weights(
    path: Path, shapes: Mapping[str, Shape], state_root: Digest, *, beside: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The weights of a state by name, after their root was computed again.

    Args:
        path: The file.
        shapes: Of the stage's parameters by name, in order.
        state_root: Of the state that they must be a part of, as a claim of work says it.
        beside: Prefixes of all that is beside them, to be read too.

    Raises:
        WrongBytes: they are of another state, or not those that their file names.
        NotFound, Malformed, UnknownVersion: see `StateFiles.load`.
    """
    others = {prefix + name: shape for prefix in beside for name, shape in shapes.items()}
    every = {**shapes, **others}
    roots, tensors = _read(path, every)
    for name, shape in every.items():
        if tensors[name].dtype != torch.float32 or tensors[name].shape != shape:
            raise Malformed(f"weights {path} do not fit this stage: tensor {name}", path=str(path))
    _need(path, "state", roots.state, state_root)
    _need(path, "weights", tensors_root((name, tensors[name]) for name in shapes), roots.weights)
    if others:
        named = ((name, tensors[name]) for name in others)
        _need(path, "moments", tensors_root(named), roots.moments)
    return tensors


def _read(path: Path, names: Iterable[str]) -> tuple[StateRoots, dict[str, Tensor]]:
    with _opened(path) as file:
        roots = _said(file, WEIGHTS_VERSION, path, _roots)
        return roots, {name: file.get_tensor(name) for name in names}


def _roots(about: dict[str, Any]) -> StateRoots:
    weights, moments = (Digest(bytes.fromhex(about[name])) for name in ("weights", "moments"))
    return StateRoots(weights, moments, int(about["counter"]))


def _path(folder: Path, round: RoundNumber) -> Path:
    """File of the state after `round`; names sort by round."""
    return folder / f"step-{round:08d}{_SUFFIX}"


def _list(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; files that were left aside are not among them."""
    return sorted(folder.glob(f"step-*{_SUFFIX}")) if folder.is_dir() else []


def _about(about: dict[str, Any]) -> tuple[RoundNumber, int, Digest]:
    """Round, number of updates, state root."""
    root = Digest(bytes.fromhex(about["state_root"]))
    return RoundNumber(int(about["step"])), int(about["counter"]), root


def _metadata(version: str, about: dict[str, Any]) -> dict[str, str]:
    # One entry: safetensors writes several in an order that differs between processes.
    return {version: json.dumps(about, sort_keys=True)}


@contextmanager
def _writing(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"cannot write {what} {path}: {error}", path=str(path)) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise NotFound(f"no file {path}", path=str(path)) from error
    except (SafetensorError, OSError) as error:
        raise Malformed(f"{path} is damaged: {error}", path=str(path)) from error


def _said(file: Any, version: str, path: Path, read: Callable[[dict[str, Any]], T]) -> T:
    """What a file of this version says of itself."""
    metadata = file.metadata()
    if not metadata or version not in metadata:
        raise UnknownVersion(f"{path} is no file of {version}", path=str(path))
    try:
        return read(json.loads(metadata[version]))
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed(f"{path} is damaged: {error}", path=str(path)) from error


def _need(path: Path, what: str, actual: Digest, wanted: Digest) -> None:
    if actual != wanted:
        raise WrongBytes(
            f"{path} has another {what} root",
            path=str(path),
            expected=wanted.hex(),
            actual=actual.hex(),
        )
