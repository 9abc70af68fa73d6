"""The weights of a stage after one step, kept so that work on them can be repeated.

Invariants: a file under its final name is whole while the machine runs (written aside, renamed; not
synced, because the roots tell when a power cut took a part); equal states give equal files, so an
auditor takes pieces of one from several members; weights that were read have the weights root that
their file names, and that root lies under the state root that the caller got from a GradCommit.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from contracts.terms.errors import Malformed, NotFound, Unavailable, UnknownVersion, WrongBytes
from contracts.terms.ids import Digest
from training.models.parameters import Shape
from training.stages.roots import StateRoots
from training.stages.stage import Stage
from training.stages.state import tensors_root

VERSION = "tallystick.weights.v1"


def save_weights(stage: Stage, path: Path, roots: StateRoots) -> None:
    """Write the stage's weights, which have these roots.

    Raises:
        Unavailable: the disk is full or cannot be written.
    """
    aside = path.with_suffix(f"{path.suffix}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(stage.weights(), aside, metadata=_metadata(roots))
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
        state_root: Of the state that they must be a part of, as a GradCommit says it.

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


def _need(path: Path, what: str, actual: Digest, wanted: Digest) -> None:
    if actual != wanted:
        raise WrongBytes(
            f"weights {path} have another {what} root",
            path=str(path),
            expected=wanted.hex(),
            actual=actual.hex(),
        )


def _read(path: Path, names: Iterable[str]) -> tuple[StateRoots, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            roots = _roots(file.metadata(), path)
            return roots, {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise NotFound(f"no weights {path}", path=str(path)) from error
    except (SafetensorError, OSError) as error:
        raise Malformed(f"weights {path} are damaged: {error}", path=str(path)) from error


def _metadata(roots: StateRoots) -> dict[str, str]:
    # One entry, and no step: the files of one state are equal bytes (see `checkpoint`).
    about = {
        "weights": roots.weights.hex(),
        "moments": roots.moments.hex(),
        "counter": roots.counter,
    }
    return {VERSION: json.dumps(about, sort_keys=True)}


def _roots(metadata: dict[str, str] | None, path: Path) -> StateRoots:
    if not metadata or VERSION not in metadata:
        raise UnknownVersion(f"{path} holds no weights of this version", path=str(path))
    try:
        about = json.loads(metadata[VERSION])
        weights, moments = (Digest(bytes.fromhex(about[name])) for name in ("weights", "moments"))
        return StateRoots(weights, moments, int(about["counter"]))
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed(f"weights {path} are damaged: {error}", path=str(path)) from error
