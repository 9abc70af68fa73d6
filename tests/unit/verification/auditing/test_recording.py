"""Which reports have to be shown with their evidence, and what a recording leaves on the disk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.errors import Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.work import Findings, Sort, Verdict
from tests.support.auditing import MadeBytes, MemoryHost, followed_job
from tests.support.bundles import shown_claim
from tests.support.checked_history import CheckedMaker
from tests.support.dockets import CheckedJob, peer
from tests.support.history import make_digest
from training.worker.engine import Engine
from verification.auditing.outside import Followed
from verification.auditing.recording import AHEAD, is_evidence, recording
from verification.draws.cases import Case, Heard

JOB = CheckedJob()


def drawn(*heard: Verdict) -> Case:
    """Work of ann, of which these were said before."""
    work = JOB.commit("ann")
    said = tuple(Heard(peer("cem"), verdict, make_digest(verdict)) for verdict in heard)
    case = Case(work.digest(), "work", work.peer, work.group, work.round, work.round,
                JOB.spec.item_flops[0], work.digest(), work.peer)  # fmt: skip
    return replace(case, heard=said)


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
    assert is_evidence(drawn(*heard), Findings(verdict)) is stays


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[MemoryHost]:
    """Of a job that has not begun."""
    maker, engine = CheckedMaker(), Engine()
    session = next(iter(maker.sessions.values()))
    yield MemoryHost(Followed(followed_job(maker)), session, tmp_path, engine)
    await engine.close()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_recording__while_it_runs__has_what_passed_and_nothing_of_one_that_was_killed(
    tmp_path: Path, host: MemoryHost
) -> None:
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording" / "left").write_bytes(b"by a killed process")
    source, name = MadeBytes(), make_digest("tensor")
    host.sources = [source]

    async with recording(host, drawn()) as recorded:
        data = [await recorded.get(name, "part") for _ in range(2)]
        during = files_in(tmp_path)

    assert data == [b"bytes of " + name] * 2 and len(source.asked) == 1
    assert during == [f"recording/{name.hex()}"]
    assert not list(tmp_path.iterdir())


async def test_recording__disk_that_cannot_be_written__is_told_and_the_audit_goes_on(
    tmp_path: Path, host: MemoryHost
) -> None:
    host.folder = tmp_path / "file"
    host.folder.write_bytes(b"")
    case, name = drawn(), make_digest("tensor")
    report = JOB.report(case, "mismatch", by="bob")

    async with recording(host, case) as recorded:
        await recorded.ahead({make_digest("more"): "part"})
        data = await recorded.get(name, "boundary")
        await recorded.keep(shown_claim(host.session.sign(report.claim)))

    assert data == b"bytes of " + name
    ((event, fields),) = host.told
    assert event == "evidence_not_kept"
    assert fields["subject"] == case.subject and "Not a directory" in fields["reason"]


class Silent:
    """Satisfies `ByteSource` by holders that say nothing until they all are given up."""

    def __init__(self) -> None:
        self.asked, self.most = 0, 0
        self.is_full, self.given_up = asyncio.Event(), asyncio.Event()

    async def __call__(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """See `ByteSource`."""
        self.asked += 1
        self.most = max(self.most, self.asked)
        if self.asked == AHEAD:
            self.is_full.set()
        await self.given_up.wait()
        self.asked -= 1
        raise Unavailable("nobody answers")


async def test_ahead__all_holders_are_silent__a_few_are_waited_for_at_once(
    host: MemoryHost,
) -> None:
    silent = Silent()
    host.sources = [silent]
    wanted: dict[Digest, Sort] = {make_digest(number): "part" for number in range(3 * AHEAD)}

    async with recording(host, drawn()) as recorded:
        taking = asyncio.create_task(recorded.ahead(wanted))
        await silent.is_full.wait()
        silent.given_up.set()
        await taking

    assert silent.most == AHEAD
