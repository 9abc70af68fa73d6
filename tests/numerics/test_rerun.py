"""Bundles that auditors leave of work that was really computed, run again by a stranger."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import AuditMismatch, NotFound, Refused
from contracts.terms.work import Verdict, findings_of
from tallystick.audit import rerun_report
from tests.support.bundles import shown_claim
from tests.support.evidence_job import NAMES, RealHost, RealMaker, audit_all, played
from tests.support.evidence_swarm import bundles_in
from tests.support.history import report_claim
from tests.support.patience import patience
from verification.auditing.bundle import Papers, Shown, ShownClaim, ShownSum, ShownWork
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BLOBS, WEIGHTS, BundleFile, write_bundle
from verification.auditing.outcome import Outcome
from verification.auditing.rerun import rerun
from verification.distances.thresholds import SATURATED
from verification.verdicts import PROJECTIONS

LIES = (("ann", "work"), ("bob", "bucket"), ("dan", "work"))


@dataclass(frozen=True)
class Left:
    """What is left of the audits: bundles, and what each of them shows."""

    job: RealMaker
    hosts: list[RealHost]
    bundles: dict[Path, Shown]

    def one(self, kind: str, verdict: Verdict) -> Path:
        """A bundle of this kind whose auditor says this."""
        for path, shown in self.bundles.items():
            is_sought = shown.is_replayed == (kind == "work")
            if is_sought and (shown.case.kind, shown.findings.verdict) == (kind, verdict):
                return path
        raise AssertionError(f"nobody was drawn for such an audit: {kind}, {verdict}")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("job")
    job, hosts = played(folder)
    bundles = {}
    for path in bundles_in(folder):
        with BundleFile(path) as file:
            bundles[path] = show(file)
    return Left(job, hosts, bundles)


def run_again(path: Path) -> Outcome:
    return asyncio.run(rerun(path))


def rewritten(path: Path, to: Path, papers: Papers, **changed: bytes) -> Path:
    """A bundle with other papers, and other bytes under some names."""
    to.mkdir()
    with BundleFile(path) as file:
        shown = show(file)
        wanted, weights = shown.wanted, to / WEIGHTS if shown.is_replayed else None
        for name in wanted:
            (to / name.hex()).write_bytes(changed.get(name.hex(), file.blob(name)))
        if weights:
            file.copy_weights(weights)
    if WEIGHTS in changed:
        (to / WEIGHTS).write_bytes(changed[WEIGHTS])
    blobs = {name: to / name.hex() for name in wanted}
    write_bundle(to / "a.bundle", papers.encoded(), weights, blobs)
    return to / "a.bundle"


def test_audits__of_two_liars_and_others__each_leave_a_bundle_that_is_confirmed(
    left: Left,
) -> None:
    told = [line for host in left.hosts for line in host.told]
    lies = {(left.job.named(name).session.peer, kind) for name, kind in LIES}

    assert not [fields for event, fields in told if event in ("evidence_not_kept", "audit_waits")]
    kept = {fields["subject"] for event, fields in told if event == "evidence_kept"}
    assert kept == {shown.case.subject for shown in left.bundles.values()}
    assert len(left.bundles) == len(NAMES) + 2
    for path, shown in left.bundles.items():
        assert not (path.parents[1] / "recording").exists()
        found = run_again(path)
        lied = (shown.case.doer, shown.case.kind) in lies
        assert found.is_confirmed and (found.verdict == "mismatch") is lied


class WithoutRows(RealHost):
    """Of an auditor whom the market gives no rows."""

    def rows(self, name: str) -> bytes:
        """See `Host.rows`."""
        raise NotFound(f"the market has no {name}")


def test_audits__market_gives_no_rows__wait_and_blame_nobody_who_worked(
    left: Left, tmp_path: Path
) -> None:
    hosts = asyncio.run(audit_all(left.job, tmp_path, NAMES, WithoutRows))

    told = [(host, *line) for host in hosts for line in host.told]
    waiting = {host.session.peer for host, event, _ in told if event == "audit_waits"}
    assert waiting and not [event for _, event, _ in told if event == "audit_data_missing"]
    reports = [findings_of([leaf]) for host in hosts for _, leaf in host.taken]
    assert "missing" not in {each.verdict for each in reports}


def test_rerun__lie_in_a_gradient__is_confirmed_with_the_same_distances(left: Left) -> None:
    path = left.one("work", "mismatch")

    found = run_again(path)

    assert found.is_confirmed and found.verdict == "mismatch"
    assert any(each.is_far and each.name.startswith("gradient.") for each in found.distances)
    assert all(each.here == each.said for each in found.distances)  # the same machine, one thread
    assert found.shown.case.doer == left.job.named("ann").session.peer


def test_rerun__leaf_that_names_too_little__is_as_far_off_as_can_be_without_a_replay(
    left: Left,
) -> None:
    dan = left.job.named("dan").session.peer
    (path,) = (path for path, shown in left.bundles.items() if shown.case.doer == dan)
    shown = left.bundles[path]

    found = run_again(path)

    assert not shown.is_replayed and not shown.wanted
    assert found.is_confirmed and {each.here for each in found.distances} == {SATURATED}


def said_of(
    left: Left, subject: ShownClaim, by: str, verdict: Verdict, *numbers: tuple[int, ...]
) -> ShownClaim:
    """What somebody says of a claim; `numbers`: distances and projections."""
    claim, session = subject.claim, left.job.named(by).session
    about: dict[str, Any] = {"round": claim.round, "group": claim.group}
    about["subject"] = claim.digest()
    report, leaf = report_claim(claim.job, session.peer, verdict, *numbers, **about)
    return shown_claim(session.sign(report), leaf)


def name_of(left: Left, shown: ShownClaim) -> str:
    return next(n for n in NAMES if left.job.named(n).session.peer == shown.claim.peer)


def repeated(left: Left, path: Path, projections: tuple[int, ...] | None) -> Papers:
    """Papers of a repeat, which agrees: of the report in a bundle of honest work."""
    papers = left.bundles[path].papers
    assert isinstance(papers.claim, ShownWork)
    found, work = left.bundles[path].findings, papers.claim.work
    own = found.projections if projections is None else projections
    first = said_of(left, work, name_of(left, papers.report), "match", found.distances, own)
    names = sorted([*(each.name for each in run_again(path).distances), PROJECTIONS])
    distances = list(found.distances)
    distances.insert(names.index(PROJECTIONS), 0)
    repeat = said_of(left, first, name_of(left, work), "match", tuple(distances))
    return replace(papers, claim=replace(papers.claim, repeated=first), report=repeat)


@pytest.mark.parametrize(("projections", "verdict"), [(None, "match"), ((7, -7), "mismatch")])
def test_rerun__repeat_of_a_report__compares_what_only_a_replay_shows(
    left: Left, tmp_path: Path, projections: tuple[int, ...] | None, verdict: Verdict
) -> None:
    path = left.one("work", "match")

    found = run_again(rewritten(path, tmp_path / "again", repeated(left, path, projections)))

    far = {each.name for each in found.distances if each.is_far}
    assert found.verdict == verdict and found.said == "match"
    assert far == (set() if verdict == "match" else {PROJECTIONS})


@pytest.mark.parametrize(
    ("truth", "said"), [("match", "match"), ("mismatch", "match"), ("match", "mismatch")]
)
def test_rerun__repeat_of_a_report_on_a_sum__agrees_if_the_sum_is_what_it_said(
    left: Left, tmp_path: Path, truth: Verdict, said: Verdict
) -> None:
    path = left.one("bucket", truth)
    papers = left.bundles[path].papers
    assert isinstance(papers.claim, ShownSum)
    bucket = shown_claim(papers.claim.bucket)
    first = said_of(left, bucket, name_of(left, papers.report), said)
    repeat = said_of(left, first, name_of(left, bucket), said)
    again = replace(papers, claim=replace(papers.claim, repeated=first), report=repeat)

    found = run_again(rewritten(path, tmp_path / "again", again))

    assert found.verdict == ("match" if said == truth else "mismatch")
    assert rerun_report.claim_of(found.shown).startswith("report on mean of bucket")


def accusing(left: Left, path: Path) -> Papers:
    """The papers of honest work, with a report that calls it false."""
    papers = left.bundles[path].papers
    assert isinstance(papers.claim, ShownWork)
    far = (SATURATED,) * len(findings_of(papers.report.leaves).distances)
    auditor = name_of(left, papers.report)
    return replace(papers, report=said_of(left, papers.claim.work, auditor, "mismatch", far))


def test_rerun__honest_work_that_is_accused__is_not_confirmed(left: Left, tmp_path: Path) -> None:
    path = left.one("work", "match")

    found = run_again(rewritten(path, tmp_path / "forged", accusing(left, path)))

    assert not found.is_confirmed
    assert (found.said, found.verdict) == ("mismatch", "match")


def test_rerun__tensor_of_another_unit_under_its_name__is_refused(
    left: Left, tmp_path: Path
) -> None:
    path = left.one("work", "mismatch")
    shown = left.bundles[path]
    assert isinstance(shown.papers.claim, ShownWork)
    first, second = sorted(name for name, sort in shown.wanted.items() if sort == "boundary")[:2]
    with BundleFile(path) as file:
        other = file.blob(second)

    made = rewritten(path, tmp_path / "made", shown.papers, **{first.hex(): other})

    with pytest.raises(AuditMismatch) as caught:
        run_again(made)
    assert caught.value.data["path"] == f"{BLOBS}{first.hex()}"


def test_rerun__weights_with_another_bit__are_refused(left: Left, tmp_path: Path) -> None:
    path = left.one("work", "match")
    with BundleFile(path) as file:
        file.copy_weights(tmp_path / "weights")
    weights = bytearray((tmp_path / "weights").read_bytes())
    weights[-1] ^= 1

    papers = left.bundles[path].papers
    made = rewritten(path, tmp_path / "made", papers, weights=bytes(weights))

    with pytest.raises(AuditMismatch) as caught:
        run_again(made)
    assert caught.value.data["path"] == WEIGHTS


def test_rerun__device_that_the_table_does_not_hold__says_so(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "verification.auditing.rerun.device_class", lambda _device: "abacus/ten-beads"
    )

    with pytest.raises(Refused, match="does not hold abacus/ten-beads against"):
        run_again(left.one("work", "mismatch"))


def test_rerun__device_that_is_none__is_refused(left: Left) -> None:
    path = left.one("work", "mismatch")

    for name in ("no device", "meta"):
        with pytest.raises(Refused):
            asyncio.run(rerun(path, device=name))


def test_lines__of_a_rerun__show_each_distance_beside_what_is_allowed(left: Left) -> None:
    found = run_again(left.one("work", "mismatch"))

    text = list(rerun_report.lines(found))

    assert text[-1] == "confirmed: mismatch here, as the auditor says"
    assert sum(line.endswith("too far") for line in text) == sum(e.is_far for e in found.distances)
    assert rerun_report.body(found).confirmed
    assert any("on trust" in line for line in text)


@pytest.mark.nightly  # torch is imported three times
def test_command__confirmed_not_confirmed_and_no_bundle__exits_0_10_12(
    left: Left, tmp_path: Path
) -> None:
    lie, honest = left.one("work", "mismatch"), left.one("work", "match")
    forged = rewritten(honest, tmp_path / "forged", accusing(left, honest))
    (tmp_path / "junk").write_bytes(bytes(100))

    for path, status in ((lie, 0), (forged, 10), (tmp_path / "junk", 12)):
        words = ("-m", "tallystick", "audit", "rerun", str(path), "-o", "json")
        done = subprocess.run(
            (sys.executable, *words), capture_output=True, text=True, timeout=patience(60)
        )

        assert done.returncode == status, done.stderr
        if status == 12:
            assert json.loads(done.stderr)["code"] == "unreadable"
            assert not done.stdout
        else:
            assert json.loads(done.stdout)["confirmed"] is (status == 0)
