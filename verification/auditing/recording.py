"""While an audit goes on: keep what it takes, in case that it has to be shown.

A `Recording` stands between a replay and the job. What passes is written to a folder of its own; a
report that others may have to see turns it into a bundle, and whatever else goes. The interface to
who publishes it: `<folder of the auditor>/evidence/<subject hex>.bundle`, there before the report.

Invariants: a bundle that stays was checked as its readers will; an audit never fails because its
evidence cannot be kept, which is told instead; bytes go to disk as they come.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.digest import peer_id
from contracts.terms.errors import Misbehaved, NotFound, Refused, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    StepBeacon,
    StepClose,
)
from contracts.terms.signatures import Signed, expect
from verification.auditing.bundle import (
    Papers,
    ShownCommit,
    ShownSum,
    ShownWork,
    check_papers,
    parts_summed,
    peers_named,
)
from verification.auditing.bundle_file import write_bundle
from verification.auditing.job import AuditedJob
from verification.auditing.replays import Replays
from verification.docket import begin, docket_of
from verification.draws.cases import Case
from verification.draws.selection import ordering_beacon

FOLDER = "evidence"


def is_evidence(case: Case, report: AuditReport) -> bool:
    """Whether somebody may be slashed by this report: it accuses, or clears who was accused."""
    accused = any(heard.verdict == "mismatch" for heard in case.heard)
    return report.verdict == "mismatch" or (report.verdict == "match" and accused)


@asynccontextmanager
async def recording(audited: AuditedJob) -> AsyncIterator["Recording"]:
    """Keep what an audit takes until it is over; what `Recording.keep` made of it stays."""
    spool = _Spool(audited.folder / "recording")
    made = Recording(audited, spool)
    await made.write(spool.begin)
    try:
        yield made
    finally:
        await asyncio.to_thread(spool.clear)


class Recording:
    """Satisfies `replays.Source` by a job; what it hands out is also written down."""

    def __init__(self, audited: AuditedJob, spool: "_Spool") -> None:
        self._audited, self._spool = audited, spool
        self._lost: str | None = None  # why nothing can be kept

    @property
    def record(self) -> JobRecord:
        """See `Source.record`."""
        return self._audited.record

    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""
        return self._audited.replays_in(stage)

    def state_of(self, commit: GradCommit) -> Digest:
        """See `Source.state_of`; a reader of a bundle knows no other state than the claim's."""
        root = self._audited.state_of(commit)
        if root != commit.state_root:
            self._lost = "the claim is of another state than its stage's"
        return root

    def report(self, name: Digest) -> AuditReport:
        """See `Source.report`."""
        return self._audited.report(name)

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: ItemNumber, digest: Digest
    ) -> bytes:
        """See `Source.tensor`."""
        data = await self._audited.tensor(step, stages, unit, digest)
        await self.put(digest, data)
        return data

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """See `Source.part`."""
        data = await self._audited.part(commit, chunk)
        await self.put(commit.parts[chunk].digest, data)
        return data

    # ---------------------------------------------------------------------------------- writing

    async def put(self, name: Digest, data: Buffer) -> None:
        """Write down bytes that have this digest."""
        await self.write(lambda: self._spool.put(name, data))

    async def link(self, weights: Path) -> None:
        """Hold on to the file of the weights, which may go when the replay is over."""
        await self.write(lambda: self._spool.link(weights))

    async def write(self, do: Callable[[], None]) -> None:
        """Write to the spool; after a first failure nothing is tried any more."""
        if self._lost is None:
            try:
                await asyncio.to_thread(do)
            except OSError as error:
                self._lost = str(error)

    async def keep(self, case: Case, report: AuditReport) -> None:
        """Make a bundle of what was recorded for `report`, on disk when this returns.

        A sum has recorded nothing yet: its parts are taken now.
        """
        audited, about = self._audited, {"step": case.step, "subject": case.subject}
        try:
            if self._lost is not None:
                raise Unavailable(self._lost)
            path = audited.folder / FOLDER / f"{case.subject.hex()}.bundle"
            papers = papers_of(audited, case, audited.sign(report))
            if isinstance(papers.claim, ShownSum):
                await self._take_parts(papers.claim)
            size = await asyncio.to_thread(self._bundle, path, papers)
        except (OSError, Refused, Unavailable, Misbehaved) as error:
            audited.tell("evidence_not_kept", **about, reason=str(error))
        else:
            audited.tell("evidence_kept", **about, verdict=report.verdict, bytes=size)

    async def _take_parts(self, claim: ShownSum) -> None:
        for commit in parts_summed(self.record.spec, claim):
            await self.part(commit, ChunkIndex(claim.chunk.message.chunk))

    def _bundle(self, path: Path, papers: Papers) -> int:
        table = docket_of(self.record).rules.table
        path.parent.mkdir(exist_ok=True)
        shown = check_papers(papers, lambda spec, outside: begin(spec, outside, table))
        blobs = {name: self._spool.blob(name) for name in shown.wanted}
        if missing := [name for name, file in blobs.items() if not file.exists()]:
            raise NotFound("what the claim names did not pass here", name=missing[0].hex())
        weights = None if shown.case.is_of_sum else self._spool.weights
        return write_bundle(path, papers.encoded(), weights, blobs)


class _Spool:
    """A folder for one audit at a time; what a killed process has left in it goes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.weights = folder / "weights"

    def blob(self, name: Digest) -> Path:
        """Where bytes of this digest lie."""
        return self._folder / name.hex()

    def begin(self) -> None:
        """Make it, empty."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def put(self, name: Digest, data: Buffer) -> None:
        """Write bytes down; not synced, because a bundle will be."""
        self.blob(name).write_bytes(data)

    def link(self, weights: Path) -> None:
        """The same file under another name, where the file system knows such; else a copy."""
        self.weights.unlink(missing_ok=True)
        try:
            os.link(weights, self.weights)
        except OSError:
            shutil.copyfile(weights, self.weights)

    def clear(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------ papers


def papers_of(audited: AuditedJob, case: Case, report: Signed[AuditReport]) -> Papers:
    """What was signed about a case, as the auditor's own history has it.

    Raises:
        NotFound: a message of it is not known here (any more).
    """
    record = audited.record
    claim = _sum_claim(audited, case) if case.is_of_sum else _work_claim(audited, case)
    spec, opening, *leases = audited.parties
    named = set(peers_named(claim, report.message))
    accepts = (expect(lease, LeaseAccept) for lease in leases)
    own = {peer_id(accept.message.session_key): accept for accept in accepts}
    return Papers(
        record.domain,
        expect(spec, JobSpec),
        expect(opening, JobOpening),
        record.outside,
        tuple(own[peer] for peer in sorted(named & own.keys())),
        claim,
        report,
    )


def _work_claim(audited: AuditedJob, case: Case) -> ShownWork:
    work = replace(_shown_commit(audited, case.work), closes=_closes_of(audited, case.work))
    is_last = work.commit.stage == audited.record.spec.batch.stages - 1
    return ShownWork(
        work,
        _rows_of(audited, work) if is_last and work.commit.stage > 0 else (),
        _beacon_of(audited, case),
        _repeated(audited, case),
    )


def _repeated(audited: AuditedJob, case: Case) -> Signed[AuditReport] | None:
    if case.kind != "report":
        return None
    return expect(_said(audited, case.subject), AuditReport)


def _closes_of(audited: AuditedJob, name: Digest) -> tuple[Signed[StepClose], ...]:
    """All of the step up to that of the GradCommit, by revision."""
    commit = expect(_said(audited, name), GradCommit).message
    own = expect(_said(audited, commit.step_close), StepClose).message
    found = [
        expect(signed, StepClose)
        for signed in audited.said().values()
        if isinstance(signed.message, StepClose) and signed.message.step == own.step
    ]
    closes = sorted(found, key=lambda each: each.message.revision)
    return tuple(each for each in closes if each.message.revision <= own.revision)


def _rows_of(audited: AuditedJob, work: ShownCommit) -> tuple[ShownCommit, ...]:
    """GradCommits of the first stage that name the rows of these units."""
    commits = (each.message for each in audited.said().values())
    first = sorted(
        (each.round, each.peer, each.digest())
        for each in commits
        if isinstance(each, GradCommit) and (each.step, each.stage) == (work.commit.step, 0)
    )
    shown = [_shown_commit(audited, name) for _, _, name in first]
    return tuple(each for each in shown if each.units & work.units)


def _beacon_of(audited: AuditedJob, case: Case) -> Signed[StepBeacon]:
    """The beacon that seeded the projections: its B is what the docket remembers of it."""
    wanted = case.seeded_by if case.kind == "report" else case.beacon
    for signed in audited.said().values():
        beacon = signed.message
        if isinstance(beacon, StepBeacon) and wanted == ordering_beacon(
            audited.record.job, beacon.of, beacon.beacon
        ):
            return Signed(beacon, signed.signature)
    raise NotFound("the beacon of this draw is not known any more")


def _sum_claim(audited: AuditedJob, case: Case) -> ShownSum:
    chunk = expect(_said(audited, case.work), AveragedChunk)
    average = expect(_said(audited, chunk.message.average_set), AverageSet)
    names = (member.grad_commit for member in average.message.members)
    commits = tuple(expect(_said(audited, name), GradCommit) for name in names)
    return ShownSum(chunk, average, commits, _repeated(audited, case))


def _shown_commit(audited: AuditedJob, name: Digest) -> ShownCommit:
    signed = expect(_said(audited, name), GradCommit)
    return ShownCommit(signed, audited.commit(name).leaves)


def _said(audited: AuditedJob, name: Digest) -> Signed[Message]:
    if (signed := audited.said().get(name)) is None:
        raise NotFound("a message of this audit is not known any more", name=name.hex())
    return signed
