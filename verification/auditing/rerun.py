"""Runs an evidence bundle again: `tallystick audit rerun`. Uses torch.

Everything is checked before anything is computed: signatures, roots, every digest, the weights
against the base of the claim. Then the code that auditors run does the work again on what the
bundle holds; this machine's own thresholds decide. It opens no socket and trusts no number.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from contracts.governance.checking import Begin
from contracts.governance.sealed import SealedClaim
from contracts.terms.digest import digest
from contracts.terms.errors import (
    AuditMismatch,
    Malformed,
    Misbehaved,
    NotFound,
    Refused,
)
from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.work import Findings, Sort
from training.averaging.forms import Forms
from training.data.loading import BlobSource
from training.stages.exact import device_class
from training.strategies.port import Comparison, Replayed
from training.strategies.registry import strategy_of
from training.worker.engine import Engine
from verification.auditing.auditor import compared
from verification.auditing.bundle import Papers, Shown
from verification.auditing.bundle_bytes import BundledBytes, show
from verification.auditing.bundle_file import WEIGHTS, BundleFile
from verification.auditing.outcome import Distance, Outcome
from verification.auditing.replays import (
    Meter,
    ReplaySource,
    compared_with_report,
    sums_to_it,
)
from verification.docket import begin_job, classes_of, docket_of
from verification.reading import at, mismatch
from verification.verdicts import limits_of, seed_for, verdict_of, verdict_on_sum

_HERE = PeerId(digest("peer", b"this machine"))


async def rerun(
    path: Path,
    *,
    device: str = "cpu",
    start: BlobSource | None = None,
    begin: Begin = begin_job,
) -> Outcome:
    """Check a bundle, and do again what it is about.

    Args:
        path: The bundle.
        device: To compute on, as torch names it.
        start: Of a job that trains an adapter, the weights that it is trained beside.
        begin: Makes the rules of the job's draws: with the shipped calibration table.

    Raises:
        Unreadable: it is no bundle, or damaged.
        AuditMismatch: it does not fit itself; data: `path`.
        Refused: no such device; no calibrated threshold between it and that of the claim; or the
            job names another calibration table; or it trains an adapter, and there is no `start`.
        NotFound: no such file, or `start` has other weights.
        Unavailable: the device failed, or has no memory left.
    """
    own_class = device_class(_device(device))
    with BundleFile(path) as file:
        shown = show(file, begin)
        held = BundledBytes(shown, file, Forms(shown.record.spec).digest)
        if shown.case.is_of_sum:
            held.check()
            verdict = verdict_on_sum(shown.case, is_same=await _sums_to_it(held, device))
            return Outcome(shown, own_class, verdict, ())
        limits = _limits(shown, own_class)  # without them there is no point in the rest
        _need_start(shown.record.spec, start)
        held.check()
        with TemporaryDirectory(prefix="tallystick-rerun-") as folder:
            weights = Path(folder) / WEIGHTS
            if shown.is_replayed:
                file.copy_weights(weights)
            here = await _replayed(held, weights, device, start)
    names = sorted(limits)
    said = dict(zip(names, shown.findings.distances, strict=True))  # checked with the report
    return Outcome(
        shown,
        own_class,
        verdict_of(shown.case, [here[name] for name in names], limits),
        tuple(Distance(name, here[name], limits[name], said[name]) for name in names),
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Malformed(f"{name!r:.80} names no device") from error
    if device.type != "cpu" and not (device.type == "cuda" and torch.cuda.is_available()):
        raise Refused(f"there is no device {name!r:.80} here")
    return device


def _limits(shown: Shown, own_class: str) -> dict[str, int]:
    classes = {**classes_of(shown.record), _HERE: own_class}
    return limits_of(docket_of(shown.record).rules, shown.case, _HERE, classes)


def _need_start(spec: JobSpec, start: BlobSource | None) -> None:
    if spec.model.adapter is None:
        return
    if start is None:
        raise Refused(
            "this job trains an adapter: name the folder of the model that it is trained beside "
            "(--start)"
        )
    start.fetch(spec.model.weights)


async def _replayed(
    held: BundledBytes, weights: Path, device: str, start: BlobSource | None
) -> dict[str, int]:
    """Distances between the claim and what comes of it here."""
    shown, claim = held.shown, held.shown.sealed.claim
    async with _bundled(held, weights, device, start) as source:
        if shown.is_replayed:
            with at(WEIGHTS):
                source.strategy.need_weights(weights, claim.group, claim.base)
        seed = seed_for(shown.case, shown.papers.report.claim.peer)
        try:
            found = await compared(source, shown.sealed, seed)
        except AuditMismatch:
            raise
        except (Refused, Misbehaved) as error:  # what the claim names is no tensor of this job
            mismatch("claim/work", error.message)
        return compared_with_report(source, shown.case, found)


async def _sums_to_it(held: BundledBytes, device: str) -> bool:
    """Whether the parts come to the mean that was bound."""
    async with _bundled(held, Path(), device, None) as source:
        return await sums_to_it(source, held.shown.sealed, source.strategy, source.meter)


@dataclass(frozen=True)
class _Blobs:
    """Satisfies `BlobSource`: counts of targets by the papers, an adapter's base by the start."""

    papers: Papers
    start: BlobSource | None

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        targets = self.papers.targets
        if targets is not None and targets.digest() == digest:
            return targets.encoded()
        if self.start is None:
            raise NotFound("a bundle has no such blob", digest=digest.hex())
        return self.start.fetch(digest)

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        return self.fetch(digest)[start:end]


@asynccontextmanager
async def _bundled(
    held: BundledBytes, weights: Path, device: str, start: BlobSource | None
) -> AsyncIterator["Bundled"]:
    engine = Engine()
    try:
        yield Bundled(held, weights, Meter(engine), device, start)
    finally:
        await engine.close()


class Bundled:
    """Satisfies `replays.Source`; its replay begins on the bundle's weights."""

    def __init__(
        self,
        held: BundledBytes,
        weights: Path,
        meter: Meter,
        device: str,
        start: BlobSource | None,
    ) -> None:
        self._held, self._weights, self.meter = held, weights, meter
        blobs = _Blobs(held.shown.papers, start)
        self.strategy = strategy_of(self.spec, blobs, meter, device=device)

    @property
    def spec(self) -> JobSpec:
        """See `Source.spec`."""
        return self._held.shown.record.spec

    def findings(self, report: Digest) -> Findings:
        """See `Source.findings`: of the one that was repeated."""
        assert self._held.shown.repeated is not None  # only that is asked for
        return self._held.shown.repeated

    async def replay(self, sealed: SealedClaim, seed: bytes, comparison: Comparison) -> Replayed:
        """See `Source.replay`."""
        source = ReplaySource(sealed, self._weights, self.get, self._rows)
        return await self.strategy.replay(sealed.claim, sealed.leaves, source, seed, comparison)

    async def _rows(self, name: str) -> bytes:
        return self._held.rows(ItemNumber(int(name.rpartition("/")[2])))

    async def get(self, digest: Digest, sort: Sort) -> bytes:
        """See `Source.get`."""
        return self._held.blob(digest)
