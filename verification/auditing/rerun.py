"""Runs an evidence bundle again: `tallystick audit rerun`. Uses torch.

Everything is checked before anything is computed: signatures, roots, every digest, the weights
against the state root of the claim. Then the code that auditors run does the work again on what the
bundle holds; this machine's own thresholds decide. It opens no socket and trusts no number.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from contracts.governance.checking import Begin
from contracts.governance.record import JobRecord
from contracts.terms.digest import digest, formed_digest, tensor_digest
from contracts.terms.errors import AuditMismatch, Malformed, Misbehaved, NotFinite, Refused
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AuditReport, GradCommit, JobSpec
from training.averaging.slices import slice_digest
from training.averaging.sums import mean_slice
from training.stages.exact import device_class
from training.worker.averages import terms_of
from training.worker.engine import Engine
from training.worker.numeric_recipe import NumericRecipe
from training.worker.sealed import SealedCommit
from training.worker.stage_replay import StageReplayer
from verification.auditing.auditor import replay_peer_step
from verification.auditing.bundle import Shown, Sort, ShownSum, ShownWork
from verification.auditing.bundle_bytes import BundledBytes, show
from verification.auditing.bundle_file import WEIGHTS, BundleFile
from verification.auditing.loop import compared_with_report, seed_for, verdict_on_sum
from verification.auditing.outcome import Distance, Outcome
from verification.auditing.replays import Replays
from verification.docket import begin_job
from verification.reading import at, mismatch
from verification.verdicts import limits_of, verdict_of

_HERE = PeerId(digest("peer", b"this machine"))
_TOKEN_BYTES = (1, 2, 4)


async def rerun(path: Path, *, device: str = "cpu", begin: Begin = begin_job) -> Outcome:
    """Check a bundle, and do again what it is about.

    Args:
        path: The bundle.
        device: To compute on, as torch names it.
        begin: Makes the rules of the job's draws: with the shipped calibration table.

    Raises:
        Unreadable: it is no bundle, or damaged.
        AuditMismatch: it does not fit itself; data: `path`.
        Refused: no such device; no calibrated threshold between it and that of the claim; or the
            job names another calibration table. NotFound: no such file.
        Unavailable: the device failed, or has no memory left.
    """
    own_class = device_class(_device(device))
    with BundleFile(path) as file:
        shown = show(file, begin)
        held = BundledBytes(shown, file, JobBytes(shown.record.spec).digest)
        claim = shown.papers.claim
        if isinstance(claim, ShownSum):
            held.check()
            verdict = verdict_on_sum(shown.case, is_same=_sums_to_it(held, claim))
            return Outcome(shown, own_class, verdict, ())
        limits = _limits(shown, own_class)  # without them there is no point in the rest
        held.check()
        with TemporaryDirectory(prefix="tallystick-rerun-") as folder:
            weights = Path(folder) / WEIGHTS
            file.copy_weights(weights)
            distances = dict(await _replayed(held, claim, weights, device))
    said = dict(shown.papers.report.message.distances)
    return Outcome(
        shown,
        own_class,
        verdict_of(shown.case, tuple(distances.items()), limits),
        tuple(Distance(name, distances[name], limits[name], said[name]) for name in limits),
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
    classes = {**shown.classes, _HERE: own_class}
    return limits_of(shown.docket.rules, shown.case, _HERE, classes)


async def _replayed(
    held: BundledBytes, claim: ShownWork, weights: Path, device: str
) -> tuple[tuple[str, int], ...]:
    """Distances between the claim and what comes of it here."""
    shown, commit = held.shown, claim.work.commit
    recipe = NumericRecipe(shown.record.spec, BundledRows(held), commit.stage)
    replayer = StageReplayer(recipe, device=device)
    with at(WEIGHTS):
        replayer.need_weights(weights, commit.state_root)

    async def weights_of(_step: StepNumber, _root: Digest) -> Path:
        return weights

    engine = Engine()
    try:
        source = Bundled(held, Replays(engine, lambda: replayer, weights_of))
        seed = seed_for(shown.case, shown.papers.report.message.auditor)
        found = await replay_peer_step(source, _sealed(claim), seed)
        return compared_with_report(source, shown.case, found.distances, found.projections)
    except AuditMismatch:
        raise
    except (Refused, Misbehaved) as error:  # what the claim names is no tensor of this job
        mismatch("claim/work", error.message)
    finally:
        await engine.close()


def _sealed(claim: ShownWork) -> SealedCommit:
    return SealedCommit(claim.work.commit, claim.work.leaves, claim.work.taken_over)


def _sums_to_it(held: BundledBytes, claim: ShownSum) -> bool:
    """Whether the parts come to the mean that was bound."""
    spec, chunk = held.shown.record.spec, claim.chunk.message
    commits = {signed.message.digest(): signed.message for signed in claim.commits}
    with at("claim"):
        place = (chunk.stage, chunk.chunk)
        terms = terms_of(spec.chunking, claim.average.message, commits, place)
        parts = [held.blob(term.commit.parts[chunk.chunk].digest) for term in terms]
        own, totals = [term.weight for term in terms], [term.total for term in terms]
        try:
            mean = mean_slice(parts, own, spec.rules.gradient_codec, totals=totals)
        except (Malformed, NotFinite):  # bound, and nobody can add them up
            return False
    return mean.digest == chunk.chunk_digest


class JobBytes:
    """How the tensors of a job are digested."""

    def __init__(self, spec: JobSpec) -> None:
        self._part = spec.rules.gradient_codec
        self.rows_shape = (spec.batch.rows_per_unit, spec.model.sequence_length + 1)

    def digest(self, sort: Sort, data: bytes) -> Digest:
        """See `sources.DigestOf`."""
        match sort:
            case "boundary":  # of whatever form: nobody can compute on one that is not the job's
                return formed_digest(data)
            case "part":
                return slice_digest(data, self._part)
            case "rows":
                return tensor_digest(f"uint{8 * self.token_bytes(data)}", self.rows_shape, data)

    def token_bytes(self, rows: bytes) -> int:
        """Bytes of one token in the rows of a unit; raises Malformed."""
        num_rows, length = self.rows_shape
        size, rest = divmod(len(rows), num_rows * length)
        if rest or size not in _TOKEN_BYTES:
            raise Malformed(f"{len(rows)} bytes are no {num_rows} rows of {length} tokens")
        return size


class BundledRows:
    """Satisfies `RowSource` by what a bundle holds of the corpus."""

    def __init__(self, held: BundledBytes) -> None:
        self._held, self._bytes = held, JobBytes(held.shown.record.spec)

    @property
    def token_bytes(self) -> int:
        """See `RowSource.token_bytes`; asked where rows are read."""
        return self._bytes.token_bytes(self._held.rows(min(self._held.shown.rows)))

    def load(self, step: StepNumber, unit: ItemNumber) -> tuple[bytes, ...]:
        """See `RowSource.load`."""
        data = self._held.rows(unit)
        size = len(data) // self._bytes.rows_shape[0]
        return tuple(data[at : at + size] for at in range(0, len(data), size))


class Bundled:
    """Satisfies `replays.Source`; its replays begin on the bundle's weights."""

    def __init__(self, held: BundledBytes, replays: Replays) -> None:
        self._held, self._replays = held, replays

    @property
    def record(self) -> JobRecord:
        """See `Source.record`; no seal is in it."""
        return self._held.shown.record

    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""
        return self._replays

    def state_of(self, commit: GradCommit) -> Digest:
        """See `Source.state_of`: a bundle is only made where the claim says the same."""
        return Digest(commit.state_root)

    def report(self, name: Digest) -> AuditReport:
        """See `Source.report`: the one that was repeated."""
        claim = self._held.shown.papers.claim
        assert isinstance(claim, ShownWork) and claim.repeated is not None  # only that is asked for
        return claim.repeated.message

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: ItemNumber, digest: Digest
    ) -> bytes:
        """See `Source.tensor`."""
        return self._held.blob(digest)

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """See `Source.part`."""
        return self._held.blob(commit.parts[chunk].digest)
