"""What an evidence bundle says: all that was signed about one audit, and what it leads to. Pure.

Whoever holds a bundle can run the audit again without asking anybody. `Papers` are its signed part;
`check_papers` accepts them only whole: each signature by whom it binds, leaves under the root that
the accused signed, a report whose verdict follows from its distances. From them follows which bytes
the bundle has to hold beside them, by digest: what the work was done on, and what was claimed. Of a
claim whose leaves do not name all that (`verdicts.is_complete`) it holds none.

No number is read that follows from another one: the kind of the audit, its seed and its verdict are
derived, as in the audit file. What no bundle shows is that seals hold these messages: for that
there is the job's audit file. Source: docs/protocol.md 5.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from contracts.governance.checking import Begin
from contracts.governance.record import (
    JobRecord,
    check_signature,
    open_job,
    with_auditors,
    with_lease,
)
from contracts.governance.rounds import flops_of
from contracts.governance.sealed import SealedClaim, needed
from contracts.terms.amounts import Flops
from contracts.terms.auditors import AuditorList
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import MAX_ITEMS, ItemNumber, contains
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept, Message, StepBeacon
from contracts.terms.signatures import Signed, expect, verify_wallet
from contracts.terms.targets import TargetCounts, item_weights
from contracts.terms.typed_data import Domain
from contracts.terms.work import (
    Findings,
    Leaf,
    RoundClosed,
    Sort,
    WorkClaim,
    findings_of,
    tensor_name,
)
from verification.docket import begin_job, classes_of, docket_of
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import ordering_beacon
from verification.reading import (
    Field,
    at,
    mismatch,
    read_domain,
    read_map,
    read_signed,
    require,
)
from verification.verdicts import is_complete, limits_of, verdict_of

VERSION = "bundle.v5"
MAX_PAPERS_BYTES = 64 * 2**20
MAX_BUNDLE_BYTES = 2_000_000_000
"""Of its file: below what a zip needs 64-bit fields for."""

T = TypeVar("T", bound=Message)


@dataclass(frozen=True)
class ShownClaim:
    """A claim of work or a report as its peer signed it, with its leaves."""

    signed: Signed[WorkClaim]
    leaves: tuple[Leaf, ...]

    @property
    def claim(self) -> WorkClaim:
        """What was signed."""
        return self.signed.message


@dataclass(frozen=True)
class ShownWork:
    """Work that was replayed: because it was drawn, or a report on it."""

    work: ShownClaim
    closed: Signed[RoundClosed]  # that merges it
    beacon: Signed[StepBeacon]  # that seeded the projections
    repeated: ShownClaim | None  # the report, where a report was repeated


@dataclass(frozen=True)
class ShownSum:
    """A mean that was added up again: because it was drawn, or a report on it."""

    bucket: Signed[WorkClaim]
    closed: Signed[RoundClosed]
    claims: tuple[Signed[WorkClaim], ...]  # all that RoundClosed names, in its order
    repeated: ShownClaim | None  # the report, where a report was repeated


@dataclass(frozen=True)
class Papers:
    """The signed part of a bundle, in the order in which it is checked."""

    domain: Domain
    spec: Signed[JobSpec]
    opening: Signed[JobOpening]
    outside: AuditorList
    leases: tuple[Signed[LeaseAccept], ...]  # of all who are named and no outside auditor
    claim: ShownWork | ShownSum
    report: ShownClaim  # what the auditor says who made the bundle
    targets: TargetCounts | None = None  # that the spec names; None in pretraining

    def encoded(self) -> bytes:
        """Canonical bytes."""
        value = {
            "version": VERSION,
            "chain": {"chain_id": self.domain.chain_id, "escrow": self.domain.escrow},
            "spec": self.spec.value(),
            "opening": self.opening.value(),
            "outside": self.outside.value(),
            "leases": [lease.value() for lease in self.leases],
            "claim": _claim_value(self.claim),
            "report": _shown_value(self.report),
            "targets": None if self.targets is None else self.targets.value(),
        }
        return encode(value)  # type: ignore[arg-type]  # nested dicts of Value, invariant to mypy


@dataclass(frozen=True)
class Shown:
    """Papers that hold, and what follows from them."""

    papers: Papers
    record: JobRecord  # of the job, with the leases that the papers hold
    case: Case
    sealed: SealedClaim  # the work or bucket
    findings: Findings  # of the report
    repeated: Findings | None  # of the report that was repeated, if one was
    is_replayed: bool  # not of a bucket, nor of a claim that does not name what a replay takes
    wanted: Mapping[Digest, Sort] = field(default_factory=dict)
    """Bytes that a bundle has beside its papers, all of which are needed and no others."""
    rows: Mapping[ItemNumber, Digest] = field(default_factory=dict)
    """What the rows of each item are called, where the stage reads any."""


# ----------------------------------------------------------------------------------------- reading


def read_papers(data: bytes) -> Papers:
    """The papers that `data` spells. Only their form is checked.

    Raises:
        Unreadable: they are none, or of another version.
        AuditMismatch: they have a field too few or too many; data: `path`.
    """
    value = read_map(data, VERSION, max_bytes=MAX_PAPERS_BYTES)
    fields = Field(value).record(
        "version", "chain", "spec", "opening", "outside", "leases", "claim", "report", "targets"
    )
    with at("outside"):
        outside = AuditorList.decoded(encode(fields["outside"].value))
    return Papers(
        read_domain(fields["chain"].record("chain_id", "escrow")),
        _signed(fields["spec"], JobSpec),
        _signed(fields["opening"], JobOpening),
        outside,
        tuple(_signed(each, LeaseAccept) for each in fields["leases"].list()),
        _read_claim(fields["claim"]),
        _shown(fields["report"]),
        _read_targets(fields["targets"]),
    )


def _read_targets(field: Field) -> TargetCounts | None:
    with at("targets"):
        return None if field.value is None else TargetCounts.decoded(encode(field.value))


def _read_claim(field: Field) -> ShownWork | ShownSum:
    value = field.value
    if isinstance(value, dict) and value.get("type") == "bucket":
        fields = field.record("type", "bucket", "closed", "claims", "repeated")
        return ShownSum(
            _signed(fields["bucket"], WorkClaim),
            _signed(fields["closed"], RoundClosed),
            tuple(_signed(each, WorkClaim) for each in fields["claims"].list()),
            _read_repeated(fields["repeated"]),
        )
    fields = field.record("type", "work", "closed", "beacon", "repeated")
    fields["type"].text("work")
    return ShownWork(
        _shown(fields["work"]),
        _signed(fields["closed"], RoundClosed),
        _signed(fields["beacon"], StepBeacon),
        _read_repeated(fields["repeated"]),
    )


def _read_repeated(field: Field) -> ShownClaim | None:
    return None if field.value is None else _shown(field)


def _shown(field: Field) -> ShownClaim:
    fields = field.record("claim", "leaves")
    leaves = fields["leaves"].list()
    require(len(leaves) <= MAX_ITEMS, fields["leaves"].path, "too many items")
    return ShownClaim(_signed(fields["claim"], WorkClaim), tuple(map(_leaf, leaves)))


def _leaf(field: Field) -> Leaf:
    with at(field.path):
        return Leaf.from_value(field.value)


def _signed(field: Field, cls: type[T]) -> Signed[T]:
    with at(field.path):
        return expect(read_signed(field), cls)


def _shown_value(shown: ShownClaim) -> dict[str, object]:
    return {
        "claim": shown.signed.value(),
        "leaves": [leaf.value() for leaf in shown.leaves],
    }


def _claim_value(claim: ShownWork | ShownSum) -> dict[str, object]:
    value = {
        "closed": claim.closed.value(),
        "repeated": None if claim.repeated is None else _shown_value(claim.repeated),
    }
    if isinstance(claim, ShownSum):
        return value | {
            "type": "bucket",
            "bucket": claim.bucket.value(),
            "claims": [each.value() for each in claim.claims],
        }
    return value | {
        "type": "work",
        "work": _shown_value(claim.work),
        "beacon": claim.beacon.value(),
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
    _check(record, claim.closed, "claim/closed")
    if isinstance(claim, ShownSum):
        case, sealed = _check_sum(record, claim)
    else:
        case, sealed = _check_work(record, claim)
    repeated = None
    if claim.repeated is not None:
        repeated = _check_findings(record, case, claim.repeated, "claim/repeated")
        said = claim.repeated.claim
        case = repeat_of(case, Heard(said.peer, repeated.verdict, said.digest()), case.step)
    findings = _check_report(record, case, papers.report)
    _check_leases(record, papers)
    if isinstance(claim, ShownSum):
        wanted = needed(record.spec, sealed)
        return Shown(papers, record, case, sealed, findings, repeated, False, wanted)
    if not is_complete(record.spec, sealed.claim.group, sealed.leaves):
        return Shown(papers, record, case, sealed, findings, repeated, False)
    rows = _rows_of(record.spec, sealed)
    wanted = needed(record.spec, sealed) | dict.fromkeys(rows.values(), "rows")
    return Shown(papers, record, case, sealed, findings, repeated, True, wanted, rows)


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
    try:
        item_weights(record.spec, papers.targets)
    except Conflict as error:
        mismatch("targets", error.message)
    for index, lease in enumerate(papers.leases):
        with at(f"leases/{index}"):
            record = with_lease(record, lease)
    return record


def _check_work(record: JobRecord, claim: ShownWork) -> tuple[Case, SealedClaim]:
    work, closed = claim.work.claim, claim.closed.message
    _check_shown(record, claim.work, "claim/work")
    require(work.what == "work", "claim/work", "it is no claim of work")
    _check_outputs(record, work, "claim/work")
    is_of_items = tuple(leaf.item for leaf in claim.work.leaves) == work.numbers
    require(is_of_items, "claim/work", "the leaves are of other items")
    is_merged = work.digest() in closed.weights
    require(is_merged, "claim/closed", "it does not name this claim")
    is_based = closed.bases[work.group : work.group + 1] == (work.base,)
    is_based |= record.spec.batch.merges_late and work.round < closed.round
    require(is_based, "claim/closed", "it names another base")
    given = dict(closed.given).get(work.group, ())
    is_said = all(contains(given, leaf.item) for leaf in claim.work.leaves if leaf.given)
    require(is_said, "claim/closed", "a leaf is given that it does not say")
    _check(record, claim.beacon, "claim/beacon")
    said = claim.beacon.message
    require(said.of >= closed.round, "claim/beacon", "it draws an earlier step")
    beacon = ordering_beacon(record.job, said.of, said.beacon)
    return _case(record, work, beacon), SealedClaim(work, claim.work.leaves, closed)


def _check_sum(record: JobRecord, claim: ShownSum) -> tuple[Case, SealedClaim]:
    bucket, closed = claim.bucket.message, claim.closed.message
    _check(record, claim.bucket, "claim/bucket")
    require(bucket.what == "bucket", "claim/bucket", "it is no claim of a bucket")
    groups = record.spec.chunking.stages_of((bucket.group, bucket.bucket))
    require(bool(groups), "claim/bucket", "there is no such bucket")
    bound = (bucket.subject, bucket.round) == (closed.digest(), closed.round)
    require(bound, "claim/closed", "the bucket is a mean of something else")
    for index, signed in enumerate(claim.claims):
        path = f"claim/claims/{index}"
        _check(record, signed, path)
        require(signed.message.what == "work", path, "it is no claim of work")
        _check_outputs(record, signed.message, path)
    names = [signed.message.digest() for signed in claim.claims]
    is_all = names == [name for name, _ in closed.claims]
    require(is_all, "claim/claims", "not those that RoundClosed names, in its order")
    merged = tuple(signed.message for signed in claim.claims)
    return _case(record, bucket, None), SealedClaim(bucket, (), closed, merged)


def _case(record: JobRecord, claim: WorkClaim, beacon: Digest | None) -> Case:
    is_work, name, peer = claim.what == "work", claim.digest(), claim.peer
    flops = flops_of(record.spec, claim) if is_work else Flops(0)
    return Case(name, "work" if is_work else "bucket", peer, claim.group, claim.round, claim.round,
                flops, name, peer, beacon=beacon)  # fmt: skip


def _check_shown(record: JobRecord, shown: ShownClaim, path: str) -> None:
    _check(record, shown.signed, path)
    is_own = shown.claim.leaves == claim_leaves_root(shown.leaves)
    require(is_own, path, "the leaves are others")


def _check_outputs(record: JobRecord, claim: WorkClaim, path: str) -> None:
    buckets = [number for _, number in record.spec.chunking.of_stage(claim.group)]
    require(bool(buckets), path, "there is no such stage")
    is_whole = [output.bucket for output in claim.outputs] == buckets
    require(is_whole, path, "outputs are not all buckets in order")


def _check_findings(record: JobRecord, case: Case, report: ShownClaim, path: str) -> Findings:
    """What a report on a case says."""
    claim = report.claim
    _check_shown(record, report, path)
    about = (claim.what, claim.subject, claim.round, claim.group)
    is_of_it = about == ("report", case.subject, case.step, case.stage)
    require(is_of_it, path, "about something else")
    with at(path):
        findings = findings_of(report.leaves)
    require(findings.verdict != "missing", path, "it says nothing of the work")
    return findings


def _check_report(record: JobRecord, case: Case, report: ShownClaim) -> Findings:
    findings = _check_findings(record, case, report, "report")
    if case.is_of_sum:
        require(not findings.distances, "report", "a bucket is compared by bytes")
        return findings
    limits = limits_of(docket_of(record).rules, case, report.claim.peer, classes_of(record))
    with at("report"):
        verdict = verdict_of(case, findings.distances, limits)
    require(verdict == findings.verdict, "report", "its verdict does not follow from its distances")
    return findings


def _check_leases(record: JobRecord, papers: Papers) -> None:
    named = set(peers_named(papers.claim, papers.report))
    outside = {each.peer for each in papers.outside.auditors}
    require(set(record.leases) == named - outside, "leases", "not those of who is named")


def peers_named(claim: ShownWork | ShownSum, report: ShownClaim) -> Iterator[PeerId]:
    """Whose keys the papers have to show."""
    yield report.claim.peer
    if isinstance(claim, ShownSum):
        yield claim.bucket.message.peer
        yield from (signed.message.peer for signed in claim.claims)
    else:
        yield claim.work.claim.peer
    if claim.repeated is not None:
        yield claim.repeated.claim.peer


def _check(record: JobRecord, signed: Signed[T], path: str) -> None:
    with at(path):
        check_signature(record, signed)


def _rows_of(spec: JobSpec, sealed: SealedClaim) -> dict[ItemNumber, Digest]:
    """What the rows of each item are called, in a stage that reads them."""
    stage, last = sealed.claim.group, spec.batch.stages - 1
    if 0 < stage < last:
        return {}
    names = ((leaf, tensor_name("rows", stage, leaf.item)) for leaf in sealed.leaves)
    return {leaf.item: leaf.tensor(name) for leaf, name in names}
