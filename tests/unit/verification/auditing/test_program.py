"""What an auditor does with what is drawn for it, whatever becomes of one case."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contracts.governance.checking import Reported
from contracts.terms.errors import Conflict, InvariantBroken, Malformed, NotFound, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.messages import MILLION
from contracts.terms.work import Findings, findings_of
from tests.support.auditing import Enough, MadeBytes, MemoryHost, Stated, followed_job, stop
from tests.support.checked_history import CheckedMaker
from tests.support.dockets import audit_spec
from tests.support.fakes.counting import CountingStrategy
from tests.support.history import make_digest, make_members
from training.strategies.port import Bucket, Piece, Shard, Weights
from training.worker.engine import Engine
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BundleFile
from verification.auditing.outside import Followed
from verification.auditing.program import Auditing
from verification.auditing.replays import Meter
from verification.draws.cases import Case


def made_job(**audit: int) -> CheckedMaker:
    """A job of six members whose first round is drawn whole, and owed: two reports by somebody.

    Who audits whom is drawn by the job's id, so the first name counts whose draws say so.
    """
    for name in ("job", "another job", "a third job"):
        members, spec = make_members("abcdef"), audit_spec(deadline=9, **audit)
        job = CheckedMaker(name=name, members=members, audit=spec)
        job.next_seal()
        job.next_seal(works=False)
        cases = [case for case, _ in job.docket.open.values() if case.kind == "work"]
        if len({case.auditor for case in cases}) < len(cases):
            return job
    raise AssertionError("everybody owes one report")


MADE = made_job()  # here, because its signatures take more than a unit test may
SUMS = made_job(sums=MILLION)


def owing(job: CheckedMaker, kind: str = "work", num: int = 1) -> tuple[PeerId, list[Case]]:
    """Somebody who owes so many reports on claims of a kind, and these."""
    cases = [case for case, _ in job.docket.open.values() if case.kind == kind]
    for case in cases:
        own = [each for each in cases if each.auditor == case.auditor]
        if case.auditor is not None and len(own) >= num:
            return case.auditor, own
    raise AssertionError("nobody owes as many")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The one thread that computes."""
    engine = Engine()
    yield engine
    await engine.close()


async def host_of(
    job: CheckedMaker, peer: PeerId, folder: Path, engine: Engine, **changed: object
) -> MemoryHost:
    """What somebody's audits run in."""
    followed = Followed(followed_job(job))
    host = MemoryHost(followed, job.sessions[peer], folder, engine, **changed)  # type: ignore[arg-type]
    await followed.look(host.tell)
    return host


async def audit(host: MemoryHost, repeating: Stated) -> None:
    """Look once at everything that is owed."""
    with pytest.raises(Enough):
        await Auditing(repeating, stop).run(host)


def said(host: MemoryHost) -> dict[Digest, Reported]:
    """What was handed in, by subject."""
    return {
        signed.message.subject: Reported(signed.message, findings_of([leaf]))
        for signed, leaf in host.taken
    }


async def test_auditing__started_again__says_the_same_and_looks_at_nothing_twice(
    tmp_path: Path, engine: Engine
) -> None:
    peer, cases = owing(MADE)
    first = await host_of(MADE, peer, tmp_path, engine, refusal=Unavailable("not reached"))
    await audit(first, Stated())
    again, repeating = await host_of(MADE, peer, tmp_path, engine), Stated()

    await audit(again, repeating)

    assert not first.taken and not repeating.looked
    assert len(again.taken) == len(cases)


async def test_auditing__a_bug_shows_in_one_case__is_told_and_the_next_one_is_audited(
    tmp_path: Path, engine: Engine
) -> None:
    peer, (case, *others) = owing(MADE, num=2)
    host = await host_of(MADE, peer, tmp_path, engine)

    await audit(host, Stated(errors={case.work: ValueError("no integer is nan")}))

    assert said(host).keys() == {each.subject for each in others}
    (waits,) = (fields for event, fields in host.told if event == "audit_waits")
    assert (waits["code"], waits["reason"]) == ("ValueError", "no integer is nan")


async def test_auditing__we_are_broken__ends(tmp_path: Path, engine: Engine) -> None:
    peer, (case, *_) = owing(MADE)
    host = await host_of(MADE, peer, tmp_path, engine)
    repeating = Stated(errors={case.work: InvariantBroken("here")})

    with pytest.raises(InvariantBroken):
        await Auditing(repeating, stop).run(host)


@pytest.mark.parametrize(
    ("error", "verdict"), [(NotFound("nobody has it"), "missing"), (Unavailable("wait"), None)]
)
async def test_auditing__a_part_does_not_come__is_missing_only_if_the_coordinator_says_so(
    tmp_path: Path, engine: Engine, error: Exception, verdict: str | None
) -> None:
    peer, (case, *_) = owing(MADE)
    host = await host_of(MADE, peer, tmp_path, engine)
    part = host.work.claim(case.work).claim.outputs[0].digest
    host.sources = [MadeBytes(missing=[part]), MadeBytes(error, missing=[part])]

    await audit(host, Stated())

    report = said(host).get(case.subject)
    assert (None if report is None else report.findings.verdict) == verdict


async def test_auditing__holders_of_bytes__are_asked_before_whose_work_it_is(
    tmp_path: Path, engine: Engine
) -> None:
    peer, (case, *_) = owing(MADE)
    source = MadeBytes()
    host = await host_of(MADE, peer, tmp_path, engine, sources=[source])

    await audit(host, Stated())

    parts = {output.digest for output in host.work.claim(case.work).claim.outputs}
    holders = [holders for digest, _, holders in source.asked if digest in parts]
    assert len(holders) == len(parts)  # each once
    assert all(each[-1] == case.doer for each in holders)
    assert max(map(len, holders)) > 1  # who reduces its own part is its only holder


async def test_auditing__report_is_wanted_no_more__is_done(tmp_path: Path, engine: Engine) -> None:
    peer, cases = owing(MADE)
    host = await host_of(MADE, peer, tmp_path, engine, refusal=Conflict("not wanted"))

    await audit(host, Stated())

    handed_in = [fields["taken"] for event, fields in host.told if event == "audit_handed_in"]
    assert handed_in == [False] * len(cases)


@pytest.mark.parametrize("sums", ["as claimed", "to something else", "to nothing"])
async def test_auditing__bucket__is_summed_from_its_parts_and_compared_by_bytes(
    tmp_path: Path, engine: Engine, sums: str
) -> None:
    peer, (case, *_) = owing(SUMS, "bucket")
    host = await host_of(SUMS, peer, tmp_path, engine)
    bucket = host.work.claim(case.work)
    parts = [b"bytes of " + each.outputs[bucket.claim.bucket].digest for each in bucket.merged]

    class Sums(CountingStrategy):
        """Comes to what the test says."""

        def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
            """See `Strategy.reduce`."""
            given = list(shards)
            assert [shard.claim for shard in given] == list(weights)
            assert sorted(bytes(shard.data) for shard in given) == sorted(parts)
            if sums == "to nothing":
                raise Malformed("parts of one bucket differ in length")
            return (output if sums == "as claimed" else other), b""

    (output,) = bucket.claim.outputs
    other = output.model_copy(update={"digest": make_digest("other")})
    host.strategy = Sums(SUMS.spec, Meter(engine))

    await audit(host, Stated())

    report = said(host)[case.subject]
    assert report.findings == Findings("match" if sums == "as claimed" else "mismatch")
    assert SUMS.docket.wants(report)
    bundles = list(tmp_path.glob("evidence/*.bundle"))
    assert len(bundles) == (sums != "as claimed")
    for path in bundles:
        with BundleFile(path) as file:
            shown = show(file, SUMS.begin)
        assert (shown.case.subject, shown.findings) == (case.subject, report.findings)
        assert len(shown.wanted) == len(parts)
