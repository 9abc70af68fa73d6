"""Which reports have to be shown with their evidence, and what a recording leaves on the disk."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AuditReport, GradCommit, Verdict
from tests.support.dockets import CheckedJob, peer
from tests.support.history import make_digest
from verification.auditing.job import AuditedJob
from verification.auditing.recording import is_evidence, recording
from verification.draws.cases import Case, Heard

JOB = CheckedJob()


def drawn(*heard: Verdict) -> Case:
    """A peer-step of ann, of which these were said before."""
    work = JOB.commit("ann")
    said = tuple(Heard(peer("cem"), verdict, make_digest(verdict)) for verdict in heard)
    case = Case(work.digest(), "work", work.peer, work.stage, work.step, work.step,
                JOB.spec.item_flops[0], work.digest(), work.peer)  # fmt: skip
    return replace(case, heard=said)


def report(case: Case, verdict: Verdict) -> AuditReport:
    return JOB.report(case, verdict, by="bob")


@pytest.mark.parametrize(
    ("heard", "verdict", "stays"),
    [
        ((), "match", False),
        ((), "mismatch", True),
        ((), "missing", False),
        (("missing",), "match", False),
        (("mismatch",), "mismatch", True),
        (("mismatch",), "match", True),  # whoever accused is accused now
        (("mismatch",), "missing", False),
        (("mismatch", "match"), "match", True),
    ],
)
def test_is_evidence__what_accuses_or_clears_the_accused__stays(
    heard: tuple[Verdict, ...], verdict: Verdict, stays: bool
) -> None:
    case = drawn(*heard)

    assert is_evidence(case, report(case, verdict)) is stays


@dataclass
class Holder:
    """As much of a job as a recording touches before it makes a bundle."""

    folder: Path
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def tensor(self, *_where: object) -> bytes:
        """See `Source.tensor`."""
        return b"a tensor"

    def state_of(self, _commit: GradCommit) -> Digest:
        """See `Source.state_of`."""
        return make_digest("the stage's")

    def tell(self, event: str, **fields: object) -> None:
        """See `AuditedJob.tell`."""
        self.told.append((event, fields))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_recording__while_it_runs__has_what_passed_and_nothing_of_one_that_was_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording" / "left").write_bytes(b"by a killed process")
    (tmp_path / "weights").write_bytes(b"weights")
    name = make_digest("tensor")

    async with recording(cast(AuditedJob, Holder(tmp_path))) as recorded:
        data = await recorded.tensor(StepNumber(1), (0, 1), ItemNumber(0), name)
        await recorded.link(tmp_path / "weights")
        (tmp_path / "weights").unlink()  # its owner has dropped it
        during = files_in(tmp_path)
        kept = (tmp_path / "recording" / "weights").read_bytes()

    assert data == b"a tensor"
    assert during == [f"recording/{name.hex()}", "recording/weights"] and kept == b"weights"
    assert not list(tmp_path.iterdir())


async def test_recording__disk_that_cannot_be_written__is_told_and_the_audit_goes_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "file"
    folder.write_bytes(b"")
    holder, case = Holder(folder), drawn()

    async with recording(cast(AuditedJob, holder)) as recorded:
        data = await recorded.tensor(StepNumber(1), (0, 1), ItemNumber(0), Digest(bytes(32)))
        await recorded.keep(case, report(case, "mismatch"))

    assert data == b"a tensor"
    ((event, fields),) = holder.told
    assert event == "evidence_not_kept"
    assert fields["subject"] == case.subject and "Not a directory" in fields["reason"]


async def test_recording__claim_of_another_state__is_told_as_no_reader_could_repeat_it(
    tmp_path: Path,
) -> None:
    holder, case = Holder(tmp_path), drawn()

    async with recording(cast(AuditedJob, holder)) as recorded:
        assert recorded.state_of(JOB.commit("ann")) == make_digest("the stage's")
        await recorded.keep(case, report(case, "mismatch"))

    ((event, fields),) = holder.told
    assert event == "evidence_not_kept" and "another state" in fields["reason"]
    assert not list(tmp_path.iterdir())
