"""Hashing, signing, retention, comparison: what single calls take, each by itself.

Timed in one process with one thread, while nothing else runs, on the tensors of one peer-step of
the last stage: the shipped functions, the same shapes, medians of `REPEATS`. Milliseconds of wall
time, in which waits for the disk are, and of CPU.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from contracts.terms.digest import digest, tensor_digest
from contracts.terms.ids import JobId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, TensorHeader
from contracts.terms.signatures import Signed, verify_session
from tests.benchmarks.audit_overhead_process import (
    PEERS_A_STAGE,
    STAGES,
    UNITS,
    OverheadJob,
)
from tests.support.history import make_session
from training.averaging.slices import Slice, slice_digest
from training.fakes.blobs import FolderBlobs
from training.stages.threads import set_threads
from training.worker.ports import Numbers, Passed, Sent
from training.worker.projections import Projector
from training.worker.stage_compute import StageCompute
from training.worker.stage_replay import StageReplay
from training.worker.store import Store
from training.worker.tensors import Kept, Tensors
from verification.distances.comparison import Comparison
from verification.distances.thresholds import INPUT_GRADIENT, Recipe

REPEATS = 9
STEP, LAST = StepNumber(1), StageIndex(STAGES - 1)
NUM_UNITS = UNITS // PEERS_A_STAGE
SEED = digest("test", b"projections")
PEER = make_session("peer")

Paid: TypeAlias = Literal["unchecked, too", "each peer-step", "each replay", "each audited sum"]
"""For what a call is made; "unchecked, too": for each peer-step, with and without checking."""


@dataclass(frozen=True)
class Call:
    """What a kind of work takes of one peer-step, or of one audit of one."""

    what: str
    paid: Paid
    milliseconds: float
    cpu_milliseconds: float


def single_calls(job: OverheadJob, blobs: Path, folder: Path) -> list[Call]:
    """Time them all; `folder` is written to."""
    set_threads(1)
    work = _Work(job, blobs, folder)
    timed: list[tuple[str, Paid, Callable[[], object]]] = [
        ("hash boundary tensors and parts", "unchecked, too", work.hash_all),
        ("hash the state", "unchecked, too", work.last.roots),
        ("sign and check headers", "unchecked, too", work.sign_headers),
        ("write boundary tensors", "unchecked, too", work.keep_tensors),
        ("write parts, synced", "unchecked, too", work.keep_parts),
        ("write weights", "each peer-step", work.keep_weights),
        ("read weights, compare their root", "each replay", work.begin_replay),
        ("hash what was replayed", "each replay", work.hash_replayed),
        ("projections", "each replay", work.project),
        ("decode claims and own tensors", "each replay", work.decode),
        ("compare", "each replay", work.compare),
        ("write down what the audit took", "each replay", work.write_down),
        ("sign and check the report", "each replay", work.sign_report),
        ("sum a chunk again", "each audited sum", work.sum_again),
    ]
    return [Call(what, paid, *_milliseconds(action)) for what, paid, action in timed]


def _milliseconds(action: Callable[[], object]) -> tuple[float, float]:
    times, used = list[float](), list[float]()
    for _ in range(REPEATS):
        began, had = time.perf_counter(), time.thread_time()
        action()
        times.append(time.perf_counter() - began)
        used.append(time.thread_time() - had)
    return round(1000 * statistics.median(times), 3), round(1000 * statistics.median(used), 3)


class _Work:
    """One peer-step of the last stage, and everything that is done about it."""

    def __init__(self, job: OverheadJob, blobs: Path, folder: Path) -> None:
        spec, self._folder, self._numbers = job.papers().spec.message, folder, itertools.count()
        first, self.last = (
            StageCompute(spec, FolderBlobs(blobs), stage=StageIndex(stage))
            for stage in (0, STAGES - 1)
        )
        self._x: list[Sent] = []
        self._dx: list[Sent] = []
        for number in range(NUM_UNITS):
            sent = first.forward(STEP, UnitId(number), None).y
            assert sent is not None
            passed: Passed = self.last.forward(STEP, UnitId(number), sent.data)
            assert passed.dx is not None
            self._x.append(sent)
            self._dx.append(passed.dx)
        self._parts: tuple[Slice, ...] = self.last.gradient()
        both = enumerate((*self._x, *self._dx))
        self._kept = [Kept(self._header(number, each), each.data) for number, each in both]
        self._roots = self.last.roots()
        self._weights = self.keep_weights()
        self._replay = self.begin_replay()
        self._claimed = self._parameters()
        self._units = [(self._boundary(each), self._boundary(each)) for each in self._dx]
        self._gradient = np.concatenate([np.frombuffer(p.data, dtype="<f4") for p in self._parts])
        self._projector = Projector(SEED, len(self._gradient))

    # ------------------------------------------------------------------------ with every peer-step

    def hash_all(self) -> None:
        """What came in, what goes out, and the parts."""
        for each in (*self._x, *self._dx):
            tensor_digest(each.dtype, each.shape, each.data)
        for part in self._parts:
            slice_digest(part.data)

    def sign_headers(self) -> None:
        """Of what goes out; and those of what comes in are checked."""
        for number, each in enumerate(self._dx):
            verify_session(self._header(number, each), PEER.key)

    def _header(self, number: int, sent: Sent) -> Signed[TensorHeader]:
        header = TensorHeader(
            job=JobId(bytes(32)),
            step=STEP,
            stage=LAST,
            unit=UnitId(number),
            attempt=1,
            tensor="dx",
            dtype=sent.dtype,
            shape=sent.shape,
            codec="none",
            tensor_digest=sent.digest,
        )
        return PEER.sign(header)

    def keep_tensors(self) -> None:
        """What came in and what goes out, with headers."""
        tensors = Tensors(self._new_folder(), LAST)
        for kept in self._kept:
            tensors.put(kept)

    def keep_parts(self) -> None:
        """Those of our own gradient."""
        parts = [part.data for part in self._parts]
        Store(self._new_folder()).bind_parts(STEP, self._parts[0].digest, parts)

    def keep_weights(self) -> Path:
        """Of the state that the next step is computed on."""
        file = self._new_folder() / "some.weights"
        self.last.save_weights(file, self._roots)
        return file

    def _new_folder(self) -> Path:
        return self._folder / str(next(self._numbers))

    # ---------------------------------------------------------------------------- with every replay

    def begin_replay(self) -> StageReplay:
        """On weights from the disk."""
        return self.last.replayer().begin(STEP, self._weights, self._roots.state, SEED)

    def hash_replayed(self) -> None:
        """What a replay names by digest: its dx, and its parts."""
        for each in self._dx:
            tensor_digest(each.dtype, each.shape, each.data)
        for part in self._parts:
            slice_digest(part.data)

    def project(self) -> None:
        """The gradient after each unit."""
        for _ in range(NUM_UNITS):
            self._projector.of(self._gradient)

    def decode(self) -> None:
        """Claim and replay of each dx and of the gradient."""
        for each in (*self._dx, *self._dx):
            self._replay.boundary(each.data)
        for _ in ("claimed", "replayed"):
            self._parameters()

    def compare(self) -> None:
        """Distances of each dx and of each parameter's gradient."""
        comparison = Comparison(Recipe())
        for claimed, replayed in self._units:
            comparison.add(INPUT_GRADIENT, _tensor(claimed), _tensor(replayed))
        sides = ({name: _tensor(each) for name, each in self._claimed.items()} for _ in range(2))
        comparison.add_gradient(*sides)
        comparison.distances()

    def write_down(self) -> None:
        """In case that it has to be shown: x, dx and parts, not synced."""
        folder = self._new_folder()
        folder.mkdir(parents=True)
        taken = [each.data for each in (*self._x, *self._dx)] + [p.data for p in self._parts]
        for number, data in enumerate(taken):
            (folder / str(number)).write_bytes(data)

    def sign_report(self) -> None:
        """Once; coordinator and all members check it."""
        report = AuditReport(
            job=JobId(bytes(32)),
            step=STEP,
            stage=LAST,
            auditor=PEER.peer,
            subject=SEED,
            attempt=0,
            distances=tuple((f"kind {number:02}", 1) for number in range(52)),
            projections=(1,) * NUM_UNITS,
            verdict="match",
        )
        signed = PEER.sign(report)
        for _ in range(1 + STAGES * PEERS_A_STAGE):
            verify_session(signed, PEER.key)

    def sum_again(self) -> None:
        """One chunk of all peers of the stage."""
        self.last.mean([self._parts[0].data] * PEERS_A_STAGE, [1] * PEERS_A_STAGE)

    def _boundary(self, sent: Sent) -> Numbers:
        return self._replay.boundary(sent.data)

    def _parameters(self) -> dict[str, Numbers]:
        return self._replay.parameters([part.data for part in self._parts])


def _tensor(numbers: Numbers) -> Tensor:
    """With the copy that an auditor makes."""
    return torch.frombuffer(bytearray(numbers.data), dtype=torch.float32).reshape(numbers.shape)
