"""While an audit goes on: fetch what it takes, and keep it, in case that it has to be shown.

A `Recording` stands between an audit and the job. What is fetched goes to a folder of its own, a
few at a time before it is needed, so that several silent holders cost their time together; a report
that others may have to see turns it into a bundle, and whatever else goes. The interface to who
publishes it: `<folder of the auditor>/evidence/<subject hex>.bundle`, there before the report.

Invariants: a bundle that stays was checked as its readers will; an audit never fails because its
evidence cannot be kept, which is told instead; bytes go to disk as they come.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from typing_extensions import Buffer

from contracts.governance.sealed import SealedClaim
from contracts.terms.digest import peer_id
from contracts.terms.errors import Misbehaved, NotFound, Refused, TallystickError, Unavailable
from contracts.terms.ids import Digest
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept, Message, StepBeacon
from contracts.terms.signatures import Signed, expect
from contracts.terms.work import Findings, RoundClosed, Sort, WorkClaim, findings_of
from training.averaging.forms import Forms
from training.strategies.port import Comparison, Replayed
from verification.auditing.bundle import (
    Papers,
    ShownClaim,
    ShownSum,
    ShownWork,
    check_papers,
    peers_named,
)
from verification.auditing.bundle_file import write_bundle
from verification.auditing.host import Host, fetch
from verification.auditing.replays import Meter, ReplaySource
from verification.docket import begin, docket_of
from verification.draws.cases import Case
from verification.draws.selection import ordering_beacon

FOLDER = "evidence"
AHEAD = 4  # fetches of one audit at once


def is_evidence(case: Case, findings: Findings) -> bool:
    """Whether somebody may be slashed by this report: it accuses, or clears who was accused."""
    accused = any(heard.verdict == "mismatch" for heard in case.heard)
    return findings.verdict == "mismatch" or (findings.verdict == "match" and accused)


@asynccontextmanager
async def recording(host: Host, case: Case) -> AsyncIterator["Recording"]:
    """Keep what an audit takes until it is over; what `Recording.keep` made of it stays."""
    spool = _Spool(host.folder / "recording")
    made = Recording(host, case, spool)
    await made.write(spool.begin)
    try:
        yield made
    finally:
        await asyncio.to_thread(spool.clear)


class Recording:
    """Satisfies `replays.Source` by a job; what it hands out is also written down."""

    def __init__(self, host: Host, case: Case, spool: "_Spool") -> None:
        self._host, self._case, self._spool = host, case, spool
        self._lost: str | None = None  # why nothing can be kept
        self._lacking = set[Digest]()  # what nobody had when it was asked for last

    @property
    def spec(self) -> JobSpec:
        """See `Source.spec`."""
        return self._host.record.spec

    def findings(self, report: Digest) -> Findings:
        """See `Source.findings`."""
        return findings_of(self._host.work.claim(report).leaves)

    async def replay(self, sealed: SealedClaim, seed: bytes, comparison: Comparison) -> Replayed:
        """See `Source.replay`; tells what it has cost, as `replayed`.

        Raises:
            Unavailable: also of data of the job, which whoever did the work does not have to show.
        """
        host, claim, meter = self._host, sealed.claim, Meter(self._host.engine)

        async def rows_of(name: str) -> bytes:
            rows = await meter(partial(host.rows, name))
            await self._put(Forms(self.spec).digest("rows", rows), rows)
            return rows

        try:
            weights = await host.weights(claim)
        except NotFound as error:  # whose work it is does not have to show its base
            raise Unavailable(error.message) from error
        await self.write(lambda: self._spool.link(weights))
        source = ReplaySource(sealed, weights, self.get, rows_of)
        try:
            strategy = host.strategy_for(meter)
            return await strategy.replay(claim, sealed.leaves, source, seed, comparison)
        except NotFound as error:
            if self._lacking:
                raise
            raise Unavailable(error.message) from error
        finally:  # what broke off has cost something, too
            items = len(sealed.leaves)
            about = {"step": claim.round, "stage": claim.group, "items": items}
            host.tell("replayed", **about, cpu_us=meter.cpu_us)

    # --------------------------------------------------------------------------------- fetching

    async def ahead(self, wanted: Mapping[Digest, Sort]) -> None:
        """Fetch what the audit needs, a few at a time.

        What does not come is asked for once more when it is needed.
        """
        room = asyncio.Semaphore(AHEAD)

        async def one(digest: Digest, sort: Sort) -> None:
            async with room:
                if self._lost is None:  # else there is nowhere to put it
                    with suppress(TallystickError):
                        await self.get(digest, sort)

        await asyncio.gather(*(one(*each) for each in wanted.items()))

    async def get(self, digest: Digest, sort: Sort) -> bytes:
        """See `Source.get`."""
        blob = self._spool.blob(digest)
        with suppress(OSError):
            return await asyncio.to_thread(blob.read_bytes)
        host, doer = self._host, self._case.worker
        try:
            data = await fetch(host.sources, host.work, doer, digest, sort)
        except NotFound:
            self._lacking.add(digest)
            raise
        self._lacking.discard(digest)
        await self._put(digest, data)
        return data

    # ---------------------------------------------------------------------------------- writing

    async def _put(self, name: Digest, data: Buffer) -> None:
        await self.write(lambda: self._spool.put(name, data))

    async def write(self, do: Callable[[], None]) -> None:
        """Write to the spool; after a first failure nothing is tried any more."""
        if self._lost is None:
            try:
                await asyncio.to_thread(do)
            except OSError as error:
                self._lost = str(error)

    async def keep(self, report: ShownClaim) -> None:
        """Make a bundle of what was recorded for `report`, on disk when this returns."""
        case, tell = self._case, self._host.tell
        about = {"step": case.step, "subject": case.subject}
        try:
            if self._lost is not None:
                raise Unavailable(self._lost)
            path = self._host.folder / FOLDER / f"{case.subject.hex()}.bundle"
            papers = papers_of(self._host, case, report)
            size = await asyncio.to_thread(self._bundle, path, papers)
        except (OSError, Refused, Unavailable, Misbehaved) as error:
            tell("evidence_not_kept", **about, reason=str(error))
        else:
            verdict = findings_of(report.leaves).verdict
            tell("evidence_kept", **about, verdict=verdict, bytes=size)

    def _bundle(self, path: Path, papers: Papers) -> int:
        table = docket_of(self._host.record).rules.table
        path.parent.mkdir(exist_ok=True)
        shown = check_papers(papers, lambda spec, outside: begin(spec, outside, table))
        blobs = {name: self._spool.blob(name) for name in shown.wanted}
        if missing := [name for name, file in blobs.items() if not file.exists()]:
            raise NotFound("what the claim names did not pass here", name=missing[0].hex())
        weights = self._spool.weights if shown.is_replayed else None
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
        """Write bytes down, whole or not at all; not synced, because a bundle will be."""
        draft = self._folder / f".{name.hex()}.new"
        draft.write_bytes(data)
        os.replace(draft, self.blob(name))

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


def papers_of(host: Host, case: Case, report: ShownClaim) -> Papers:
    """What was signed about a case, as the auditor's own history has it.

    Raises:
        NotFound: a message of it is not known here (any more).
    """
    record, said = host.record, _Said(host)
    claim = said.sum(case) if case.is_of_sum else said.work(case)
    spec, opening, *leases = host.parties
    named = set(peers_named(claim, report))
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
        record.targets,
    )


class _Said:
    """Signed messages of sealed rounds, as a bundle shows them."""

    def __init__(self, host: Host) -> None:
        self._job, self._work, self._said = host.record.job, host.work, host.work.said()

    def work(self, case: Case) -> ShownWork:
        """About work, or a report on it."""
        work = self._shown(case.work)
        return ShownWork(work, self._closed(case), self._beacon(case), self._repeated(case))

    def sum(self, case: Case) -> ShownSum:
        """About a bucket, or a report on it."""
        merged = self._work.claim(case.work).merged
        claims = tuple(self._claim(claim.digest()) for claim in merged)
        bucket = self._claim(case.work)
        return ShownSum(bucket, self._closed(case), claims, self._repeated(case))

    def _repeated(self, case: Case) -> ShownClaim | None:
        return self._shown(case.subject) if case.kind == "report" else None

    def _shown(self, name: Digest) -> ShownClaim:
        return ShownClaim(self._claim(name), self._work.claim(name).leaves)

    def _claim(self, name: Digest) -> Signed[WorkClaim]:
        return expect(self._message(name), WorkClaim)

    def _closed(self, case: Case) -> Signed[RoundClosed]:
        closed = self._work.claim(case.work).closed
        assert closed is not None  # of work and of buckets
        return expect(self._message(closed.digest()), RoundClosed)

    def _beacon(self, case: Case) -> Signed[StepBeacon]:
        """That seeded the projections: its B is what the docket remembers of it."""
        wanted = case.seeded_by if case.kind == "report" else case.beacon
        for signed in self._said.values():
            beacon = signed.message
            if isinstance(beacon, StepBeacon) and wanted == ordering_beacon(
                self._job, beacon.of, beacon.beacon
            ):
                return Signed(beacon, signed.signature)
        raise NotFound("the beacon of this draw is not known any more")

    def _message(self, name: Digest) -> Signed[Message]:
        if (signed := self._said.get(name)) is None:
            raise NotFound("a message of this audit is not known any more", name=name.hex())
        return signed
