"""A stage's state on disk: weights, both moments and the counter in one safetensors file.

Invariants: a file under its final name is whole (written aside, fsynced, renamed, folder fsynced),
so a kill at any moment leaves the one before; a state that was read has the root that its file
names, and the root that the caller got from a seal, or it is refused; loading and going on gives
the bytes of a run that was never interrupted; equal states after one step give equal files, so a
newcomer takes pieces of one from several members.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from contracts.disk import sync
from contracts.terms.errors import Malformed, NotFound, Unavailable, UnknownVersion, WrongBytes
from contracts.terms.ids import Digest
from training.stages.stage import Stage

VERSION = "tallystick.checkpoint.v2"
_SUFFIX = ".safetensors"
_ASIDE = ".tmp"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint says of itself: state after `step`, with `counter` updates applied."""

    step: int
    counter: int
    state_root: Digest
    path: Path


def checkpoint_path(folder: Path, step: int) -> Path:
    """File of the state after `step`; names sort by step."""
    return folder / f"step-{step:08d}{_SUFFIX}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; files that were left aside are not among them."""
    return sorted(folder.glob(f"step-*{_SUFFIX}")) if folder.is_dir() else []


def save_checkpoint(stage: Stage, folder: Path, step: int, *, keep: int = 2) -> CheckpointInfo:
    """Write the state after `step`, then drop all but the newest `keep` checkpoints.

    Raises:
        Unavailable: the disk is full or cannot be written; the checkpoints before remain.
    """
    path = checkpoint_path(folder, step)
    info = CheckpointInfo(step, stage.counter, stage.roots().state, path)
    aside = path.with_suffix(path.suffix + _ASIDE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(stage.weights() | stage.moments(), aside, metadata=_metadata(info))
        sync(aside)
        os.replace(aside, path)
        sync(folder)
        for old in list_checkpoints(folder)[:-keep]:
            old.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"cannot write checkpoint {path}: {error}", path=str(path)) from error
    return info


def load_checkpoint(
    stage: Stage, path: Path, *, sealed_root: Digest | None = None
) -> CheckpointInfo:
    """Replace the stage's state by a checkpoint's, after its root was computed again.

    Args:
        stage: Of the same config and slice.
        path: The file.
        sealed_root: State root that a seal names, where the caller has one.

    Raises:
        NotFound: no such file.
        Malformed: cut short, altered in its frame, or of another stage.
        UnknownVersion: another program's file.
        WrongBytes: its bytes do not have the root that the file, or the seal, names.
    """
    try:
        with safe_open(path, framework="pt") as file:
            info = _info(file.metadata(), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except FileNotFoundError as error:
        raise NotFound(f"no checkpoint {path}", path=str(path)) from error
    except (SafetensorError, OSError) as error:
        raise Malformed(f"checkpoint {path} is damaged: {error}", path=str(path)) from error
    _load_checked(stage, tensors, info, sealed_root)
    return info


def adopt_checkpoint(
    stage: Stage, folder: Path, step: int, file: Path, *, sealed_root: Digest | None = None
) -> CheckpointInfo:
    """Load a checkpoint that came from others, and keep it in `folder` under its own name.

    Raises:
        Malformed, UnknownVersion, WrongBytes: see `load_checkpoint`; also if it is of another step.
        Unavailable: the disk is full or cannot be written.
    """
    info = load_checkpoint(stage, file, sealed_root=sealed_root)
    path = checkpoint_path(folder, step)
    if info.step != step:
        raise Malformed(f"a checkpoint of step {info.step}, wanted {step}", path=str(file))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(file, path)
        sync(folder)
    except OSError as error:
        raise Unavailable(f"cannot keep checkpoint {path}: {error}", path=str(path)) from error
    return CheckpointInfo(step, info.counter, info.state_root, path)


def load_newest(
    stage: Stage, folder: Path, *, sealed_root: Digest | None = None
) -> tuple[CheckpointInfo | None, list[Path]]:
    """Load the newest checkpoint that is whole.

    Returns:
        What was loaded (none: the stage is as it was), and the files that were passed over
        because they are damaged or have another root.
    """
    passed_over: list[Path] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(stage, path, sealed_root=sealed_root), passed_over
        except (Malformed, WrongBytes):
            passed_over.append(path)
    return None, passed_over


def _load_checked(
    stage: Stage, tensors: dict[str, Tensor], info: CheckpointInfo, sealed_root: Digest | None
) -> None:
    try:
        root = stage.roots_of(tensors, info.counter).state
    except Malformed as error:
        raise Malformed(f"checkpoint {info.path}: {error.message}", path=str(info.path)) from error
    for wanted in (info.state_root, sealed_root):
        if wanted is not None and root != wanted:
            raise WrongBytes(
                f"checkpoint {info.path} has another state root",
                path=str(info.path),
                expected=wanted.hex(),
                actual=root.hex(),
            )
    stage.load(tensors, info.counter)


def _metadata(info: CheckpointInfo) -> dict[str, str]:
    # One entry: safetensors writes several in an order that differs between processes.
    about = {"step": info.step, "counter": info.counter, "state_root": info.state_root.hex()}
    return {VERSION: json.dumps(about, sort_keys=True)}


def _info(metadata: dict[str, str] | None, path: Path) -> CheckpointInfo:
    if not metadata or VERSION not in metadata:
        raise UnknownVersion(f"{path} is not a checkpoint of this version", path=str(path))
    try:
        about = json.loads(metadata[VERSION])
        root = Digest(bytes.fromhex(about["state_root"]))
        return CheckpointInfo(int(about["step"]), int(about["counter"]), root, path)
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed(f"checkpoint {path} is damaged: {error}", path=str(path)) from error
