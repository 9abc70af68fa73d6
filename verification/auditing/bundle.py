"""What an evidence bundle says: all that was signed about one audit, and what it leads to. Pure.

Whoever holds a bundle can run the audit again without asking anybody. `Papers` are its signed part;
`check_papers` accepts them only whole: each signature by whom it binds, leaves under the root that
the accused signed, a report whose verdict follows from its distances. From them follows which bytes
the bundle has to hold beside them, by digest: what the work was done on, and what was claimed.

No number is read that follows from another one: the kind of the audit, its seed and its verdict are
derived, as in the audit file. What no bundle shows is that seals hold these messages: for that
there is the job's audit file. Source: docs/protocol.md 5.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

from contracts.governance.checking import Begin
from contracts.governance.record import (
    JobRecord,
    check_signature,
    open_job,
    with_auditors,
    with_lease,
)
from contracts.terms.amounts import Flops
from contracts.terms.auditors import AuditorList, decode_auditors
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict
from contracts.terms.history import unit_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId
from contracts.terms.items import MAX_ITEMS, ItemNumber
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
    UnitLeaf,
)
from contracts.terms.signatures import Signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from verification.damage import read_map
from verification.docket import Docket, begin_job, classes_of, docket_of
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import ordering_beacon
from verification.reading import (
    Field,
    at,
    mismatch,
    read_domain,
    read_signed,
    require,
    signed_value,
)
from verification.verdicts import limits_of, verdict_of

VERSION = "bundle.v3"
MAX_PAPERS_BYTES = 64 * 2**20
MAX_BUNDLE_BYTES = 2_000_000_000
"""Of its file: below what a zip needs 64-bit fields for."""

Sort: TypeAlias = Literal["boundary", "part", "rows"]
"""What bytes spell, which decides how they are digested."""

T = TypeVar("T", bound=Message)


@dataclass(frozen=True)
class ShownCommit:
    """A GradCommit as its peer signed it, with its leaves."""

    signed: Signed[GradCommit]
    leaves: tuple[UnitLeaf, ...]
    closes: tuple[Signed[StepClose], ...] = ()
    """Of audited work every StepClose of its step up to its own, by revision."""

    @property
    def commit(self) -> GradCommit:
        """What was signed."""
        return self.signed.message

    @property
    def taken_over(self) -> frozenset[ItemNumber]:
        """Units that an earlier StepClose gave to another peer, who is gone: y and dx in their
        leaves may be that one's (docs/protocol.md 3.4).
        """
        return frozenset(
            unit
            for close in self.closes[:-1]
            for each in close.message.assignments
            if each.stage == self.commit.stage and each.peer != self.commit.peer
            for unit in each.units
        )

    @property
    def units(self) -> frozenset[ItemNumber]:
        """Units that it is about."""
        return frozenset(leaf.unit for leaf in self.leaves)


@dataclass(frozen=True)
class ShownWork:
    """A peer-step that was replayed: because it was drawn, or a report on it."""

    work: ShownCommit
    rows: tuple[ShownCommit, ...]
    """GradCommits of the first stage, which name the rows that a last stage took its labels from;
    none where the work is of the first stage itself, or needs no labels."""
    beacon: Signed[StepBeacon]  # that seeded the projections
    repeated: Signed[AuditReport] | None  # the report, where a report was repeated


@dataclass(frozen=True)
class ShownSum:
    """A mean that was added up again: because it was drawn, or a report on it."""

    chunk: Signed[AveragedChunk]
    average: Signed[AverageSet]
    commits: tuple[Signed[GradCommit], ...]  # all that the AverageSet names
    repeated: Signed[AuditReport] | None = None  # the report, where a report was repeated


@dataclass(frozen=True)
class Papers:
    """The signed part of a bundle, in the order in which it is checked."""

    domain: Domain
    spec: Signed[JobSpec]
    opening: Signed[JobOpening]
    outside: AuditorList
    leases: tuple[Signed[LeaseAccept], ...]  # of all who are named and no outside auditor
    claim: ShownWork | ShownSum
    report: Signed[AuditReport]  # what the auditor says who made the bundle

    def encoded(self) -> bytes:
        """Canonical bytes."""
        value = {
            "version": VERSION,
            "chain": {"chain_id": self.domain.chain_id, "escrow": self.domain.escrow},
            "spec": signed_value(self.spec),
            "opening": signed_value(self.opening),
            "outside": self.outside.value(),
            "leases": [signed_value(lease) for lease in self.leases],
            "claim": _claim_value(self.claim),
            "report": signed_value(self.report),
        }
        return encode(value)  # type: ignore[arg-type]  # nested dicts of Value, invariant to mypy


@dataclass(frozen=True)
class Shown:
    """Papers that hold, and what follows from them."""

    papers: Papers
    record: JobRecord  # of the job, with the leases that the papers hold
    case: Case
    wanted: Mapping[Digest, Sort]
    """Bytes that a bundle has beside its papers, all of which are needed and no others."""
    rows: Mapping[ItemNumber, Digest]
    """What the rows of each unit are called, where the stage reads any."""

    @property
    def docket(self) -> Docket:
        """The rules of the job's draws."""
        return docket_of(self.record)

    @property
    def classes(self) -> dict[PeerId, str]:
        """Device classes of all who are named."""
        return classes_of(self.record)


# ----------------------------------------------------------------------------------------- reading


def read_papers(data: bytes) -> Papers:
    """The papers that `data` spells. Only their form is checked.

    Raises:
        Unreadable: they are none, or of another version.
        AuditMismatch: they have a field too few or too many; data: `path`.
    """
    value = read_map(data, VERSION, max_bytes=MAX_PAPERS_BYTES)
    fields = Field(value).record(
        "version", "chain", "spec", "opening", "outside", "leases", "claim", "report"
    )
    with at("outside"):
        outside = decode_auditors(encode(fields["outside"].value))
    return Papers(
        read_domain(fields["chain"].record("chain_id", "escrow")),
        _signed(fields["spec"], JobSpec),
        _signed(fields["opening"], JobOpening),
        outside,
        tuple(_signed(each, LeaseAccept) for each in fields["leases"].list()),
        _read_claim(fields["claim"]),
        _signed(fields["report"], AuditReport),
    )


def _read_claim(field: Field) -> ShownWork | ShownSum:
    value = field.value
    if isinstance(value, dict) and value.get("type") == "sum":
        fields = field.record("type", "chunk", "average", "commits", "repeated")
        return ShownSum(
            _signed(fields["chunk"], AveragedChunk),
            _signed(fields["average"], AverageSet),
            tuple(_signed(each, GradCommit) for each in fields["commits"].list()),
            _read_repeated(fields["repeated"]),
        )
    fields = field.record("type", "work", "rows", "beacon", "repeated")
    fields["type"].text("work")
    return ShownWork(
        _shown_commit(fields["work"]),
        tuple(_shown_commit(each) for each in fields["rows"].list()),
        _signed(fields["beacon"], StepBeacon),
        _read_repeated(fields["repeated"]),
    )


def _read_repeated(field: Field) -> Signed[AuditReport] | None:
    return None if field.value is None else _signed(field, AuditReport)


def _shown_commit(field: Field) -> ShownCommit:
    fields = field.record("commit", "leaves", "closes")
    leaves = fields["leaves"].list()
    require(len(leaves) <= MAX_ITEMS, fields["leaves"].path, "too many units")
    closes = tuple(_signed(each, StepClose) for each in fields["closes"].list())
    return ShownCommit(_signed(fields["commit"], GradCommit), tuple(map(_leaf, leaves)), closes)


def _leaf(field: Field) -> UnitLeaf:
    with at(field.path):
        return UnitLeaf.from_value(field.value)


def _signed(field: Field, cls: type[T]) -> Signed[T]:
    with at(field.path):
        return expect(read_signed(field), cls)


def _commit_value(shown: ShownCommit) -> dict[str, object]:
    return {
        "commit": signed_value(shown.signed),
        "leaves": [leaf.value() for leaf in shown.leaves],
        "closes": [signed_value(close) for close in shown.closes],
    }


def _claim_value(claim: ShownWork | ShownSum) -> dict[str, object]:
    repeated = None if claim.repeated is None else signed_value(claim.repeated)
    if isinstance(claim, ShownSum):
        return {
            "type": "sum",
            "chunk": signed_value(claim.chunk),
            "average": signed_value(claim.average),
            "commits": [signed_value(commit) for commit in claim.commits],
            "repeated": repeated,
        }
    return {
        "type": "work",
        "work": _commit_value(claim.work),
        "rows": [_commit_value(shown) for shown in claim.rows],
        "beacon": signed_value(claim.beacon),
        "repeated": repeated,
    }


# ---------------------------------------------------------------------------------------- checking


def check_papers(papers: Papers, begin: Begin = begin_job) -> Shown:
    """What follows from papers, once every signature and root in them was checked.

    Args:
        papers: As read.
        begin: Makes the rules of the job's draws: with the shipped calibration table.

    Raises:
        AuditMismatch: anything does not fit; data: `path`.
        Refused: verdicts of this job follow from another calibration table than we have, or it
            does not hold these device classes.
    """
    record = _record(papers, begin)
    claim = papers.claim
    if isinstance(claim, ShownSum):
        case = _check_sum(record, claim)
        wanted, rows = _parts_of_sum(record.spec, claim), dict[ItemNumber, Digest]()
    else:
        case = _check_work(record, claim)
        wanted, rows = _wanted_of(record.spec, claim)
    _check_report(record, case, papers.report)
    _check_leases(record, papers)
    return Shown(papers, record, case, wanted, rows)


def _record(papers: Papers, begin: Begin) -> JobRecord:
    with at("spec"):
        verify_wallet(papers.spec, papers.spec.message.poster, papers.domain)
    require(papers.spec.message.rules.audit is not None, "spec", "nobody checks this job")
    with at("opening"):
        record = open_job(papers.spec, papers.opening, papers.domain)
    try:
        record = with_auditors(record, papers.outside, begin)
    except Conflict as error:
        mismatch("outside", error.message)
    for index, lease in enumerate(papers.leases):
        with at(f"leases/{index}"):
            record = with_lease(record, lease)
    return record


def _check_work(record: JobRecord, claim: ShownWork) -> Case:
    work, step = claim.work.commit, claim.work.commit.step
    _check_commit(record, claim.work, "claim/work")
    _check_closes(record, claim.work)
    wants_rows = 0 < work.stage == record.spec.batch.stages - 1
    require(wants_rows or not claim.rows, "claim/rows", "this stage takes no labels")
    for index, shown in enumerate(claim.rows):
        path = f"claim/rows/{index}"
        _check_commit(record, shown, path)
        require((shown.commit.stage, shown.commit.step) == (0, step), path, "of another place")
        require(bool(shown.units & claim.work.units), path, "names no rows of this work")
        require(not shown.closes, path, "whose units those were does not matter")
    named = frozenset[ItemNumber]().union(*(shown.units for shown in claim.rows))
    require(not wants_rows or claim.work.units <= named, "claim/rows", "some rows are not named")
    _check(record, claim.beacon, "claim/beacon")
    require(claim.beacon.message.of >= step, "claim/beacon", "it draws an earlier step")
    return _case_of_work(record, claim)


def _case_of_work(record: JobRecord, claim: ShownWork) -> Case:
    work = claim.work.commit
    beacon = ordering_beacon(record.job, claim.beacon.message.of, claim.beacon.message.beacon)
    flops = Flops(record.spec.item_flops[work.stage] * work.num_units)
    name = work.digest()
    case = Case(name, "work", work.peer, work.stage, work.step, work.step, flops, name, work.peer,
                beacon=beacon)  # fmt: skip
    return _repeat(record, case, claim.repeated)


def _repeat(record: JobRecord, case: Case, repeated: Signed[AuditReport] | None) -> Case:
    """The case itself, or that of a report on it, where one was repeated."""
    if repeated is None:
        return case
    said = repeated.message
    _check(record, repeated, "claim/repeated")
    about = (said.subject, said.step, said.stage)
    require(about == (case.subject, case.step, case.stage), "claim/repeated", "of something else")
    require(said.verdict != "missing", "claim/repeated", "it says nothing of the work")
    return repeat_of(case, Heard(said.auditor, said.verdict, said.digest()), case.step)


def _check_sum(record: JobRecord, claim: ShownSum) -> Case:
    chunk, average = claim.chunk.message, claim.average.message
    _check(record, claim.chunk, "claim/chunk")
    _check(record, claim.average, "claim/average")
    stages = record.spec.chunking.stages_of((chunk.stage, chunk.chunk))
    require(bool(stages), "claim/chunk", "there is no such chunk")
    bound = (chunk.average_set, chunk.step) == (average.digest(), average.step)
    require(bound, "claim/average", "the chunk is a mean of something else")
    for index, signed in enumerate(claim.commits):
        path = f"claim/commits/{index}"
        _check(record, signed, path)
        require(signed.message.step == chunk.step, path, "of another step")
        _check_parts(record, signed.message, path)
    names = [signed.message.digest() for signed in claim.commits]
    members = [member.grad_commit for member in average.members]
    require(names == members, "claim/commits", "not those that the AverageSet names, in its order")
    name = chunk.digest()
    case = Case(name, "sum", chunk.peer, chunk.stage, chunk.step, chunk.step, Flops(0), name,
                chunk.peer)  # fmt: skip
    return _repeat(record, case, claim.repeated)


def _check_commit(record: JobRecord, shown: ShownCommit, path: str) -> None:
    commit, units = shown.commit, [leaf.unit for leaf in shown.leaves]
    _check(record, shown.signed, path)
    require(commit.units_root == unit_leaves_root(shown.leaves), path, "the leaves are others")
    require(commit.num_units == len(units), path, "another number of units")
    require(all(one < other for one, other in pairwise(units)), path, "units must ascend")
    _check_parts(record, commit, path)


def _check_closes(record: JobRecord, shown: ShownCommit) -> None:
    for index, close in enumerate(shown.closes):
        path = f"claim/work/closes/{index}"
        _check(record, close, path)
        place = (close.message.step, close.message.revision)
        require(place == (shown.commit.step, index), path, "not the next one of this step")
    own = shown.closes[-1].message.digest() if shown.closes else ZERO_DIGEST
    is_own = own == shown.commit.step_close
    require(is_own, "claim/work/closes", "the last one is not that of the GradCommit")


def _check_parts(record: JobRecord, commit: GradCommit, path: str) -> None:
    parts = [part.chunk for part in commit.parts]
    chunks = record.spec.chunking.of_stage(commit.stage)
    require(bool(chunks), path, "there is no such stage")
    require(parts == [number for _, number in chunks], path, "parts are not all chunks in order")


def _check_report(record: JobRecord, case: Case, report: Signed[AuditReport]) -> None:
    said = report.message
    _check(record, report, "report")
    about = (said.subject, said.step, said.stage)
    require(about == (case.subject, case.step, case.stage), "report", "about something else")
    require(said.verdict != "missing", "report", "it says nothing of the work")
    if case.is_of_sum:
        require(not said.distances, "report", "a sum is compared by bytes")
        return
    limits = limits_of(docket_of(record).rules, case, said.auditor, classes_of(record))
    with at("report"):
        verdict = verdict_of(case, said.distances, limits)
    require(verdict == said.verdict, "report", "its verdict does not follow from its distances")


def _check_leases(record: JobRecord, papers: Papers) -> None:
    named = set(peers_named(papers.claim, papers.report.message))
    outside = {each.peer for each in papers.outside.auditors}
    require(set(record.leases) == named - outside, "leases", "not those of who is named")


def peers_named(claim: ShownWork | ShownSum, report: AuditReport) -> Iterator[PeerId]:
    """Whose keys the papers have to show."""
    yield report.auditor
    if isinstance(claim, ShownSum):
        yield claim.chunk.message.peer
        yield from (signed.message.peer for signed in claim.commits)
    else:
        yield from (shown.commit.peer for shown in (claim.work, *claim.rows))
    if claim.repeated is not None:
        yield claim.repeated.message.auditor


def _check(record: JobRecord, signed: Signed[T], path: str) -> None:
    with at(path):
        check_signature(record, signed)


# ------------------------------------------------------------------------------------ what it needs


def _wanted_of(
    spec: JobSpec, claim: ShownWork
) -> tuple[dict[Digest, Sort], dict[ItemNumber, Digest]]:
    """What a replay takes by digest; what the rows of its units are called."""
    commit, last = claim.work.commit, spec.batch.stages - 1
    anothers = claim.work.taken_over
    named = _rows_named((claim.work, *claim.rows) if commit.stage == 0 else claim.rows)
    rows = {unit: named[unit] for unit in claim.work.units if unit in named}
    wanted: dict[Digest, Sort] = {name: "rows" for name in rows.values()}
    for leaf in claim.work.leaves:
        taken = (leaf.x if commit.stage > 0 else None, leaf.dy if commit.stage < last else None)
        made = (leaf.y, leaf.dx) if leaf.unit not in anothers else ()  # else nothing to compare
        names = (name for name in (*taken, *made) if name not in (None, ZERO_DIGEST))
        wanted |= {name: "boundary" for name in names if name is not None}
    wanted |= {part.digest: "part" for part in commit.parts}
    return wanted, rows


def _rows_named(commits: Iterable[ShownCommit]) -> dict[ItemNumber, Digest]:
    """The x of the first stage is its rows."""
    return {leaf.unit: leaf.x for shown in commits for leaf in shown.leaves}


def parts_summed(spec: JobSpec, claim: ShownSum) -> Iterator[GradCommit]:
    """GradCommits whose part is in the sum, in the order of the AverageSet."""
    chunk = claim.chunk.message
    stages = spec.chunking.stages_of((chunk.stage, chunk.chunk))
    yield from (each.message for each in claim.commits if each.message.stage in stages)


def _parts_of_sum(spec: JobSpec, claim: ShownSum) -> dict[Digest, Sort]:
    number = claim.chunk.message.chunk
    return {commit.parts[number].digest: "part" for commit in parts_summed(spec, claim)}
