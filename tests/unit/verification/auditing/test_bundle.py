"""What signed papers of an audit show, and which do not hold."""

from dataclasses import replace

import pytest

from contracts.terms.auditors import AuditorList
from contracts.terms.errors import AuditMismatch, Refused, Unreadable
from contracts.terms.ids import Digest, StepNumber
from contracts.terms.messages import JobSpec
from tests.support.bundles import (
    KINDS,
    OUT,
    Story,
    bytes_of,
    make_story,
    repeat_papers,
    shown,
    sum_papers,
    sum_repeat_papers,
    work_papers,
)
from tests.support.history import make_session
from verification.auditing.bundle import Papers, ShownSum, ShownWork, check_papers, read_papers
from verification.docket import Docket, begin_job
from verification.draws.selection import ordering_beacon


@pytest.fixture(scope="module")
def story() -> Story:
    return make_story()


def work_of(papers: Papers) -> ShownWork:
    assert isinstance(papers.claim, ShownWork)
    return papers.claim


@pytest.mark.parametrize("kind", KINDS)
def test_read_papers__what_was_encoded__is_the_same_and_holds(story: Story, kind: str) -> None:
    papers = KINDS[kind](story)

    read = read_papers(papers.encoded())

    assert read == papers
    assert shown(read).case.kind == kind.split()[0]


@pytest.mark.parametrize(
    ("doer", "auditor", "sorts"),
    [
        ("ann", "dan", {"rows": 3, "boundary": 6, "part": 2}),
        ("bob", "eve", {"boundary": 12, "part": 2}),
        ("cem", "fay", {"rows": 3, "boundary": 6, "part": 2}),
    ],
)
def test_check_papers__work_of_each_stage__names_all_that_a_replay_takes(
    story: Story, doer: str, auditor: str, sorts: dict[str, int]
) -> None:
    found = shown(work_papers(story, doer, auditor))

    wanted = list(found.wanted.values())
    assert {sort: wanted.count(sort) for sort in set(wanted)} == sorts
    assert found.wanted.keys() <= bytes_of(story).keys()
    assert set(found.rows) == (story.commits[doer].units if "rows" in sorts else set())


def test_check_papers__sum__names_the_parts_of_its_chunk(story: Story) -> None:
    found = shown(sum_papers(story))

    assert list(found.wanted.values()) == ["part", "part"] and not found.rows
    assert found.case.kind == "sum"


def test_check_papers__work__is_the_case_that_the_docket_would_have(story: Story) -> None:
    papers = work_papers(story)

    case, commit = shown(papers).case, work_of(papers).work.commit

    beacon = story.beacon().message
    assert (case.subject, case.doer, case.worker) == (commit.digest(), commit.peer, commit.peer)
    assert case.beacon == ordering_beacon(story.job.spec.job(), beacon.of, beacon.beacon)
    assert (case.step, case.stage, case.work) == (commit.step, 2, case.subject)


def test_check_papers__repeat__is_about_the_report_and_seeded_as_it_was(story: Story) -> None:
    papers = repeat_papers(story)

    case, said = shown(papers).case, work_of(papers).repeated

    assert said is not None
    assert (case.subject, case.doer) == (said.message.digest(), said.message.auditor)
    assert (case.said, case.worker) == ("match", story.member("bob").session.peer)
    assert case.seeded_by == shown(work_papers(story, "bob", "eve")).case.beacon


def test_check_papers__repeat_of_a_report_on_a_sum__is_about_the_report(story: Story) -> None:
    found = shown(sum_repeat_papers(story))

    case, claim = found.case, found.papers.claim
    assert isinstance(claim, ShownSum) and claim.repeated is not None
    assert (case.subject, case.doer) == (
        claim.repeated.message.digest(),
        story.member("dan").session.peer,
    )
    assert (case.work, case.worker) == (claim.chunk.message.digest(), claim.chunk.message.peer)
    assert case.is_of_sum and case.said == "match"
    assert list(found.wanted.values()) == ["part", "part"]


def test_check_papers__repeat_of_a_report_on_another_sum__is_refused(story: Story) -> None:
    papers = sum_repeat_papers(story)
    assert isinstance(papers.claim, ShownSum)
    another = next(each for each in story.chunks if each.message.stage == 1)
    said = story.report("bob", another.message, "match")

    with pytest.raises(AuditMismatch, match="claim/repeated"):
        shown(replace(papers, claim=replace(papers.claim, repeated=said)))


def altered(papers: Papers, story: Story, what: str) -> Papers:
    """Papers in which everything is signed, and one thing is not as it has to be."""
    claim = work_of(papers)
    match what:
        case "leases":
            return replace(papers, leases=(*papers.leases, story.lease("eve")))
        case "leases lack one":
            return replace(papers, leases=papers.leases[1:])
        case "claim/work":
            other = replace(claim.work, leaves=claim.work.leaves[1:])
            return replace(papers, claim=replace(claim, work=other))
        case "claim/work/closes":
            return replace(papers, claim=replace(claim, work=replace(claim.work, closes=())))
        case "claim/work/closes/0":
            second = story.closes[0].message.model_copy(update={"revision": 1})
            closes = (story.job.session.sign(second),)
            return replace(papers, claim=replace(claim, work=replace(claim.work, closes=closes)))
        case "claim/rows":
            return replace(papers, claim=replace(claim, rows=()))
        case "claim/rows/0":
            dans = replace(claim, rows=(story.commits["dan"],))
            return replace(papers, claim=dans, leases=(*papers.leases, story.lease("dan")))
        case "claim/rows/1":
            rows = (*claim.rows, story.commits["fay"])
            return replace(papers, claim=replace(claim, rows=rows))
        case "claim/beacon":
            early = story.beacon(of=StepNumber(1), job=Digest(bytes(32)))
            return replace(papers, claim=replace(claim, beacon=early))
        case "claim/repeated":
            said = story.report("fay", story.commits["bob"].commit, "match")
            return replace(papers, claim=replace(claim, repeated=said))
        case "report":
            about = story.commits["fay"].commit
            return replace(papers, report=story.report("fay", about, "mismatch"))
        case "report does not follow":
            said = story.report("fay", claim.work.commit, "match", verdict="mismatch")
            return replace(papers, report=said)
        case "report is no verdict":
            said = story.report("fay", claim.work.commit, "match", verdict="missing", distances=())
            return replace(papers, report=said)
        case "outside":
            return replace(papers, outside=AuditorList(auditors=()))
        case "opening":
            opening = papers.opening.message.model_copy(update={"opening_block": 9})
            stranger = story.member("ann").wallet
            return replace(papers, opening=stranger.sign(opening, papers.domain))
        case "spec":
            spec = papers.spec.message.model_copy(update={"nonce": 2})
            return replace(papers, spec=story.member("ann").wallet.sign(spec, papers.domain))
    raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        "leases", "leases lack one", "claim/work", "claim/work/closes", "claim/work/closes/0",
        "claim/rows", "claim/rows/0", "claim/rows/1",
        "claim/beacon", "claim/repeated", "report", "report does not follow",
        "report is no verdict", "outside", "opening", "spec",
    ],
)  # fmt: skip
def test_check_papers__one_thing_is_another__is_refused_at_its_path(
    story: Story, what: str
) -> None:
    papers = altered(work_papers(story), story, what)

    with pytest.raises(AuditMismatch) as caught:
        shown(papers)

    path = what.split(" ")[0]
    lacks_key = what == "leases lack one"  # then whoever it is of has no lease
    assert caught.value.data["path"] == ("claim/rows/0" if lacks_key else path)


def test_check_papers__report_of_another_key__is_refused(story: Story) -> None:
    papers = work_papers(story)
    by_another = make_session(OUT).sign(papers.report.message)

    with pytest.raises(AuditMismatch, match=r"report: .*not signed"):
        shown(replace(papers, report=by_another))


def test_check_papers__sum_without_a_member__is_refused(story: Story) -> None:
    papers = sum_papers(story)
    assert isinstance(papers.claim, ShownSum)
    fewer = replace(papers.claim, commits=papers.claim.commits[1:])

    with pytest.raises(AuditMismatch, match="claim/commits"):
        shown(replace(papers, claim=fewer))


def test_check_papers__job_of_another_table__is_refused_as_a_request(story: Story) -> None:
    with pytest.raises(Refused, match="calibration table"):
        check_papers(work_papers(story), begin_job)


def test_check_papers__job_that_nobody_checks__is_refused(story: Story) -> None:
    papers = work_papers(story)
    rules = papers.spec.message.rules.model_copy(update={"audit": None})
    spec: JobSpec = papers.spec.message.model_copy(update={"rules": rules})

    with pytest.raises(AuditMismatch, match="spec: nobody checks"):
        shown(replace(papers, spec=story.job.poster.sign(spec, papers.domain)))


@pytest.mark.parametrize("data", [b"", b"\x80", b"no msgpack", b"\xc1", b"\x81\xa1a\x01"])
def test_read_papers__something_else__is_one_clear_error(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read_papers(data)


def test_shown__docket__has_the_rules_of_the_job(story: Story) -> None:
    docket = shown(work_papers(story)).docket

    assert isinstance(docket, Docket) and docket.rules.job == story.job.spec.job()


def test_check_papers__unit_that_another_was_given_before__wants_no_y_and_dx_of_it(
    story: Story,
) -> None:
    first = story.closes[0].message
    bob, eve = (story.member(name).session.peer for name in ("bob", "eve"))
    given = tuple(
        each.model_copy(update={"peer": eve}) if each.peer == bob else each
        for each in first.assignments
        if each.peer != eve
    )
    before = first.model_copy(update={"assignments": given})
    after = first.model_copy(update={"revision": 1})
    work = story.commits["bob"]
    commit = work.commit.model_copy(update={"step_close": after.digest()})
    closes = tuple(map(story.job.session.sign, (before, after)))
    signed = story.member("bob").session.sign(commit)
    papers = work_papers(story, "bob", "eve")
    claim = replace(work_of(papers), work=replace(work, signed=signed, closes=closes))
    report = story.report("eve", commit, "mismatch")

    found = shown(replace(papers, claim=claim, report=report))

    assert claim.work.taken_over == work.units
    made = {name for leaf in work.leaves for name in (leaf.y, leaf.dx)}
    assert not made & found.wanted.keys()
    assert list(found.wanted.values()).count("boundary") == 6
