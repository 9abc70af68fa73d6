"""What a stage keeps on disk: its state as a checkpoint, and its weights to repeat work on.

A checkpoint holds weights, both moments and the counter in one safetensors file. Invariants: a file
under its final name is whole (written aside, fsynced, renamed, folder fsynced), so a kill at any
moment leaves the one before; a state that was read has the root that its file names, and the root
that the caller got from a seal, or it is refused; loading and going on gives the bytes of a run
that was never interrupted; equal states after one step give equal files, so a newcomer takes pieces
of one from several members.

The weights after one step are kept so that work on them can be repeated. Invariants: a file under
its final name is whole while the machine runs (written aside, renamed; not synced, because the
roots tell when a power cut took a part); equal states give equal files, so an auditor takes pieces
of one from several members; weights that were read have the weights root that their file names, and
that root lies under the state root that the caller got from a claim of work.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from training.stages.stage import Stage
from training.stages.torch_free import StateRoots

# ------------------------------------------------------------------------------------- checkpoints

VERSION = "tallystick.checkpoint.v2"
_SUFFIX = ".safetensors"
_ASIDE = ".tmp"
KEPT = 2
T = TypeVar("T")


def checkpoint_path(folder: Path, step: int) -> Path:
    """File of the state after `step`; names sort by step."""
    return folder / f"step-{step:08d}{_SUFFIX}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; files that were left aside are not among them."""
    return sorted(folder.glob(f"step-*{_SUFFIX}")) if folder.is_dir() else []


def save_checkpoint(stage: Stage, folder: Path, step: int) -> Path:
    """Write the state after `step`, then drop all but the newest `KEPT` checkpoints.

    Raises:
        Unavailable: the disk is full or cannot be written; the checkpoints before remain.
    """
    path = checkpoint_path(folder, step)
    about = {"step": step, "counter": stage.counter, "state_root": stage.roots().state.hex()}
    aside = path.with_suffix(path.suffix + _ASIDE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(stage.weights() | stage.moments(), aside, metadata=_metadata(VERSION, about))
        sync(aside)
        os.replace(aside, path)
        sync(folder)
        for old in list_checkpoints(folder)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"cannot write checkpoint {path}: {error}", path=str(path)) from error
    return path


def load_checkpoint(stage: Stage, path: Path, *, sealed_root: Digest | None = None) -> int:
    """Replace the stage's state by a checkpoint's, after its root was computed again.

    Args:
        stage: Of the same config and slice.
        path: The file.
        sealed_root: State root that a seal names, where the caller has one.

    Returns:
        The step that it is of.

    Raises:
        NotFound: no such file.
        Malformed: cut short, altered in its frame, or of another stage.
        UnknownVersion: another program's file.
        WrongBytes: its bytes do not have the root that the file, or the seal, names.
    """
    with _opened(path) as file:
        step, counter, root = _said(file, VERSION, path, _about)
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    try:
        actual = stage.roots_of(tensors, counter).state
    except Malformed as error:
        raise Malformed(f"checkpoint {path}: {error.message}", path=str(path)) from error
    for wanted in (root, sealed_root):
        if wanted is not None:
            _need(path, "state", actual, wanted)
    stage.load(tensors, counter)
    return step


def adopt_checkpoint(
    stage: Stage, folder: Path, step: int, file: Path, *, sealed_root: Digest | None = None
) -> None:
    """Load a checkpoint that came from others, and keep it in `folder` under its own name.

    Raises:
        Malformed, UnknownVersion, WrongBytes: see `load_checkpoint`; also if it is of another step.
        Unavailable: the disk is full or cannot be written.
    """
    found, path = (
        load_checkpoint(stage, file, sealed_root=sealed_root),
        checkpoint_path(folder, step),
    )
    if found != step:
        raise Malformed(f"a checkpoint of step {found}, wanted {step}", path=str(file))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(file, path)
        sync(folder)
    except OSError as error:
        raise Unavailable(f"cannot keep checkpoint {path}: {error}", path=str(path)) from error


def load_newest(stage: Stage, folder: Path) -> int:
    """Load the newest checkpoint that is whole, and say its step; none: 0, and no change."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(stage, path)
        except (Malformed, WrongBytes):
            continue
    return 0


def _about(about: dict[str, Any]) -> tuple[int, int, Digest]:
    """Step, number of updates, state root."""
    root = Digest(bytes.fromhex(about["state_root"]))
    return int(about["step"]), int(about["counter"]), root


# -------------------------------------------------------------------------------- files of weights

WEIGHTS_VERSION = "tallystick.weights.v1"


def save_weights(stage: Stage, path: Path, roots: StateRoots) -> None:
    """Write the stage's weights, which have these roots.

    Raises:
        Unavailable: the disk is full or cannot be written.
    """
    about = {  # no step: the files of one state are equal bytes
        "weights": roots.weights.hex(),
        "moments": roots.moments.hex(),
        "counter": roots.counter,
    }
    aside = path.with_suffix(path.suffix + _ASIDE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(stage.weights(), aside, metadata=_metadata(WEIGHTS_VERSION, about))
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"cannot write weights {path}: {error}", path=str(path)) from error


def roots_of_weights(path: Path) -> StateRoots:
    """What a file of weights says of the state that they are a part of; compares nothing.

    Raises:
        NotFound: no such file. Malformed: it is damaged. UnknownVersion: another program's file.
    """
    return _read(path, ())[0]


def load_weights(path: Path, shapes: Mapping[str, Shape], state_root: Digest) -> dict[str, Tensor]:
    """The weights of a state by name, after their root was computed again.

    Args:
        path: The file.
        shapes: Of the stage's parameters by name, in order.
        state_root: Of the state that they must be a part of, as a claim of work says it.

    Raises:
        WrongBytes: they are of another state, or not those that their file names.
        NotFound, Malformed, UnknownVersion: see `roots_of_weights`; also those of another stage.
    """
    roots, tensors = _read(path, shapes)
    for name, shape in shapes.items():
        if tensors[name].dtype != torch.float32 or tensors[name].shape != shape:
            raise Malformed(f"weights {path} do not fit this stage: tensor {name}", path=str(path))
    _need(path, "state", roots.state, state_root)
    _need(path, "weights", tensors_root(tensors.items()), roots.weights)
    return tensors


def _read(path: Path, names: Iterable[str]) -> tuple[StateRoots, dict[str, Tensor]]:
    with _opened(path) as file:
        roots = _said(file, WEIGHTS_VERSION, path, _roots)
        return roots, {name: file.get_tensor(name) for name in names}


def _roots(about: dict[str, Any]) -> StateRoots:
    weights, moments = (Digest(bytes.fromhex(about[name])) for name in ("weights", "moments"))
    return StateRoots(weights, moments, int(about["counter"]))


# -------------------------------------------------------------------------------------------- both


def _metadata(version: str, about: dict[str, Any]) -> dict[str, str]:
    # One entry: safetensors writes several in an order that differs between processes.
    return {version: json.dumps(about, sort_keys=True)}


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
