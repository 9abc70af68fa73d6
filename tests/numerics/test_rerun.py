"""Bundles that auditors of a real swarm leave, run again by a stranger.

Two stages, two owners in each; one peer forges its gradient, one its sums. Every audit leaves a
bundle here, so that honest work can be looked at, too. Who gets units is the router's to say: what
holds of every bundle is asserted of all, and a test that wants a kind that nobody left fails.
"""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.terms.errors import AuditMismatch, Refused
from contracts.terms.messages import AuditReport, Verdict
from contracts.terms.signatures import Signed
from tallystick.audit import rerun_report
from tallystick.gym.registry import behaviour_of
from tests.numerics.loop import synthetic_corpus
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.patience import patience
from tests.support.swarm_job import MemorySwarm
from training.recipes import micro
from verification.auditing.bundle import Papers, Shown, ShownSum, ShownWork
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BLOBS, WEIGHTS, BundleFile, write_bundle
from verification.auditing.outcome import Outcome
from verification.auditing.rerun import rerun
from verification.distances.thresholds import SATURATED
from verification.verdicts import PROJECTIONS

CORPUS = synthetic_corpus()
WORKERS, OUTSIDE = ("ann", "bob", "cem", "dan"), ("out", "oda")
SMALL = {"stages": 2, "steps": 2, "units_per_step": 4, "chunks": 1}
LIARS = {"ann": "scaled", "bob": "wrong_sum"}
LIES = (("ann", "work"), ("bob", "sum"))


@dataclass(frozen=True)
class Left:
    """What is left of the swarm: bundles, and what each of them shows."""

    swarm: MemorySwarm
    bundles: dict[Path, Shown]

    def one(self, kind: str, verdict: Verdict) -> Path:
        """A bundle of this kind whose auditor says this."""
        for path, shown in self.bundles.items():
            if (shown.case.kind, shown.papers.report.message.verdict) == (kind, verdict):
                return path
        raise AssertionError(f"nobody was drawn for such an audit: {kind}, {verdict}")


def played(folder: Path, *outside: str) -> Left:
    """Let the job run to its end, with everybody's evidence."""
    torch.set_num_threads(1)
    config = micro()
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")
        patch.setattr("verification.auditing.auditor.is_evidence", lambda _case, _report: True)
        swarm = evidence_swarm(folder, config, CORPUS, *WORKERS, outside=outside, **SMALL)
        for name, lie in LIARS.items():
            swarm.behaviours[name] = behaviour_of(lie, swarm.papers.spec.message.rules)
        asyncio.run(swarm.run(timeout=250.0))
    bundles = {}
    for path in bundles_in(folder):
        with BundleFile(path) as file:
            bundles[path] = show(file)
    return Left(swarm, bundles)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return played(tmp_path_factory.mktemp("swarm"))


def run_again(path: Path) -> Outcome:
    return asyncio.run(rerun(path))


def rewritten(path: Path, to: Path, papers: Papers, **changed: bytes) -> Path:
    """A bundle with other papers, and other bytes under some names."""
    to.mkdir()
    weights = None if isinstance(papers.claim, ShownSum) else to / WEIGHTS
    with BundleFile(path) as file:
        wanted = show(file).wanted
        for name in wanted:
            (to / name.hex()).write_bytes(changed.get(name.hex(), file.blob(name)))
        if weights:
            file.copy_weights(weights)
    if WEIGHTS in changed:
        (to / WEIGHTS).write_bytes(changed[WEIGHTS])
    blobs = {name: to / name.hex() for name in wanted}
    write_bundle(to / "a.bundle", papers.encoded(), weights, blobs)
    return to / "a.bundle"


def test_swarm__with_two_liars__every_audit_leaves_a_bundle_that_is_confirmed(left: Left) -> None:
    told = {line["subject"] for line in left.swarm.lines("evidence_kept")}
    lies = {(left.swarm.session_of(name).peer, kind) for name, kind in LIES}

    assert not left.swarm.lines("evidence_not_kept")
    assert told == {shown.case.subject for shown in left.bundles.values()}
    audited = [line for line in left.swarm.lines("audited") if line["verdict"] != "missing"]
    assert len(left.bundles) == len(audited) > 0
    assert not list(left.swarm.folder.glob("*/recording"))
    for path, shown in left.bundles.items():
        found = run_again(path)
        lied = (shown.case.doer, shown.case.kind) in lies
        assert found.is_confirmed and (found.verdict == "mismatch") is lied


def test_rerun__lie_in_a_gradient__is_confirmed_with_the_same_distances(left: Left) -> None:
    path = left.one("work", "mismatch")

    found = run_again(path)

    assert found.is_confirmed and found.verdict == "mismatch"
    assert any(each.is_far and each.name.startswith("gradient.") for each in found.distances)
    assert all(each.here == each.said for each in found.distances)  # the same machine, one thread
    assert found.shown.case.doer == left.swarm.session_of("ann").peer


def repeated(left: Left, path: Path, **changed: Any) -> Papers:
    """Papers of a repeat, which agrees: of the report in a bundle of honest work."""
    papers = left.bundles[path].papers
    assert isinstance(papers.claim, ShownWork)
    first = signed_by_its_auditor(left, papers.report.message.model_copy(update=changed))
    said = first.message.model_copy(
        update={
            "auditor": papers.claim.work.commit.peer,  # a key that the papers show
            "subject": first.message.digest(),
            "distances": tuple(sorted((*first.message.distances, (PROJECTIONS, 0)))),
        }
    )
    claim = replace(papers.claim, repeated=first)
    return replace(papers, claim=claim, report=signed_by_its_auditor(left, said))


@pytest.mark.parametrize(("projections", "verdict"), [(None, "match"), ((7, -7), "mismatch")])
def test_rerun__repeat_of_a_report__compares_what_only_a_replay_shows(
    left: Left, tmp_path: Path, projections: tuple[int, ...] | None, verdict: Verdict
) -> None:
    path = left.one("work", "match")
    changed = {} if projections is None else {"projections": projections}

    found = run_again(rewritten(path, tmp_path / "again", repeated(left, path, **changed)))

    far = {each.name for each in found.distances if each.is_far}
    assert found.verdict == verdict and found.said == "match"
    assert far == (set() if verdict == "match" else {PROJECTIONS})


@pytest.mark.parametrize(
    ("truth", "said"), [("match", "match"), ("mismatch", "match"), ("match", "mismatch")]
)
def test_rerun__repeat_of_a_report_on_a_sum__agrees_if_the_sum_is_what_it_said(
    left: Left, tmp_path: Path, truth: Verdict, said: Verdict
) -> None:
    path = left.one("sum", truth)
    papers = left.bundles[path].papers
    assert isinstance(papers.claim, ShownSum)
    changed: dict[str, Any] = {"verdict": said}
    first = signed_by_its_auditor(left, papers.report.message.model_copy(update=changed))
    changed = {"auditor": papers.claim.chunk.message.peer, "subject": first.message.digest()}
    repeat = signed_by_its_auditor(left, first.message.model_copy(update=changed))
    again = replace(papers, claim=replace(papers.claim, repeated=first), report=repeat)

    found = run_again(rewritten(path, tmp_path / "again", again))

    assert found.verdict == ("match" if said == truth else "mismatch")
    assert rerun_report.claim_of(found.shown).startswith("report on sum of chunk")


def accusing(left: Left, path: Path) -> Papers:
    """The papers of honest work, with a report that calls it false."""
    papers = left.bundles[path].papers
    said = papers.report.message
    far = tuple((name, SATURATED) for name, _ in said.distances)
    forged = said.model_copy(update={"distances": far, "verdict": "mismatch"})
    return replace(papers, report=signed_by_its_auditor(left, forged))


def signed_by_its_auditor(left: Left, report: AuditReport) -> Signed[AuditReport]:
    sessions = map(left.swarm.session_of, (*WORKERS, *OUTSIDE))
    return next(each for each in sessions if each.peer == report.auditor).sign(report)


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


@pytest.mark.nightly  # twice as many audits, by two more parties
@pytest.mark.timeout(300)
def test_outside__auditors_of_the_same_job__leave_bundles_that_are_confirmed(
    tmp_path: Path,
) -> None:
    left = played(tmp_path, *OUTSIDE)

    theirs = [path for path in left.bundles if path.parts[-3] in OUTSIDE]
    kinds = {left.bundles[path].case.kind for path in theirs}
    assert kinds == {"work", "sum", "report"}
    assert all(run_again(path).is_confirmed for path in theirs)
