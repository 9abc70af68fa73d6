"""What signed papers of an audit show, and which do not hold."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from contracts.terms.auditors import AuditorList
from contracts.terms.errors import AuditMismatch, Refused, Unreadable
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ranges_of
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, RoundClosed, findings_of, tensor_name
from tests.support.bundles import (
    OUT,
    Story,
    bytes_of,
    make_story,
    shown,
    shown_claim,
    sum_papers,
    sum_repeat_papers,
    work_papers,
)
from tests.support.history import make_digest, make_session
from verification.auditing.bundle import Papers, ShownSum, ShownWork, check_papers, read_papers
from verification.docket import begin_job
from verification.draws.selection import ordering_beacon


@pytest.fixture(scope="module")
def story() -> Story:
    return make_story()


def work_of(papers: Papers) -> ShownWork:
    assert isinstance(papers.claim, ShownWork)
    return papers.claim


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
    assert tuple(found.rows) == (story.claims[doer].claim.numbers if "rows" in sorts else ())


def test_check_papers__sum__names_the_parts_of_its_chunk(story: Story) -> None:
    found = shown(sum_papers(story))

    assert list(found.wanted.values()) == ["part", "part"] and not found.rows
    assert found.case.kind == "bucket" and not found.is_replayed


def test_check_papers__work__is_the_case_that_the_docket_would_have(story: Story) -> None:
    papers = work_papers(story)

    case, claim = shown(papers).case, work_of(papers).work.claim

    beacon = story.beacon().message
    assert (case.subject, case.doer, case.worker) == (claim.digest(), claim.peer, claim.peer)
    assert case.beacon == ordering_beacon(story.job.spec.job(), beacon.of, beacon.beacon)
    assert (case.step, case.stage, case.work) == (claim.round, 2, case.subject)


def test_check_papers__repeat_of_a_report_on_another_sum__is_refused(story: Story) -> None:
    papers = sum_repeat_papers(story)
    assert isinstance(papers.claim, ShownSum)
    another = next(each for each in story.buckets if each.message.group == 1)
    said = story.report("bob", shown_claim(another), "match")

    with pytest.raises(AuditMismatch, match="claim/repeated"):
        shown(replace(papers, claim=replace(papers.claim, repeated=said)))


def closed(story: Story, **changed: object) -> Signed[RoundClosed]:
    """What the coordinator signs instead of the story's RoundClosed."""
    return story.job.session.sign(story.closed.message.model_copy(update=changed))


def claimed(story: Story, leaves: Sequence[Leaf], **changed: object) -> Papers:
    """Papers about cem's work with these leaves, merged by a RoundClosed of its own."""
    old, cem = story.claims["cem"].claim, story.member("cem").session
    signed = cem.sign(old.model_copy(update={"leaves": claim_leaves_root(leaves)}))
    work = shown_claim(signed, *leaves)
    named = {name: weight for name, weight in story.closed.message.claims if name != old.digest()}
    claims = tuple(sorted((named | {work.claim.digest(): 1}).items()))
    papers = work_papers(story)
    own = closed(story, claims=claims, **changed)
    claim = replace(work_of(papers), work=work, closed=own)
    return replace(papers, claim=claim, report=story.report("fay", work, "mismatch"))


def altered(papers: Papers, story: Story, what: str) -> Papers:
    """Papers in which everything is signed, and one thing is not as it has to be."""
    claim = work_of(papers)
    match what:
        case "leases":
            return replace(papers, leases=(*papers.leases, story.lease("eve")))
        case "claim/work lacks its lease":
            return replace(papers, leases=papers.leases[1:])
        case "claim/work":
            other = replace(claim.work, leaves=claim.work.leaves[1:])
            return replace(papers, claim=replace(claim, work=other))
        case "claim/work of other items":
            return claimed(story, claim.work.leaves[1:])
        case "claim/work is a bucket":
            other = replace(claim.work, signed=story.buckets[0], leaves=())
            return replace(papers, claim=replace(claim, work=other))
        case "claim/closed":
            others = [(name, 1) for name in sorted(map(make_digest, "ab"))]
            return replace(papers, claim=replace(claim, closed=closed(story, claims=(*others,))))
        case "claim/closed of another base":
            bases = story.closed.message.bases[::-1]
            return replace(papers, claim=replace(claim, closed=closed(story, bases=bases)))
        case "claim/closed lacks what is given":
            (leaf, *rest) = claim.work.leaves
            return claimed(story, [leaf.model_copy(update={"given": True}), *rest])
        case "claim/beacon of before":
            wrong = closed(story, round=2, claims=story.closed.message.claims)
            return replace(papers, claim=replace(claim, closed=wrong))
        case "claim/beacon":
            early = story.beacon(of=StepNumber(1), job=Digest(bytes(32)))
            return replace(papers, claim=replace(claim, beacon=early))
        case "claim/repeated":
            said = story.report("fay", story.claims["bob"], "match")
            return replace(papers, claim=replace(claim, repeated=said))
        case "report":
            return replace(papers, report=story.report("fay", story.claims["fay"], "mismatch"))
        case "report does not follow":
            near = findings_of(story.report("fay", claim.work, "match").leaves).distances
            said = story.report("fay", claim.work, "mismatch", distances=near)
            return replace(papers, report=said)
        case "report is no verdict":
            said = story.report("fay", claim.work, "missing", distances=())
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
        "leases", "claim/work", "claim/work lacks its lease", "claim/work of other items",
        "claim/work is a bucket", "claim/closed", "claim/closed of another base",
        "claim/closed lacks what is given", "claim/beacon", "claim/beacon of before",
        "claim/repeated", "report", "report does not follow", "report is no verdict", "outside",
        "opening", "spec",
    ],
)  # fmt: skip
def test_check_papers__one_thing_is_another__is_refused_at_its_path(
    story: Story, what: str
) -> None:
    papers = altered(work_papers(story), story, what)

    with pytest.raises(AuditMismatch) as caught:
        shown(papers)

    assert caught.value.data["path"] == what.split(" ")[0]


def test_check_papers__report_of_another_key__is_refused(story: Story) -> None:
    papers = work_papers(story)
    by_another = shown_claim(make_session(OUT).sign(papers.report.claim), *papers.report.leaves)

    with pytest.raises(AuditMismatch, match=r"report: .*not signed"):
        shown(replace(papers, report=by_another))


def test_check_papers__sum_without_a_member__is_refused(story: Story) -> None:
    papers = sum_papers(story)
    assert isinstance(papers.claim, ShownSum)
    fewer = replace(papers.claim, claims=papers.claim.claims[1:])

    with pytest.raises(AuditMismatch, match="claim/claims"):
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


def test_check_papers__given_leaf__wants_no_tensor_that_it_made(story: Story) -> None:
    work = story.claims["cem"]
    leaves = [leaf.model_copy(update={"given": True}) for leaf in work.leaves]
    given = ((2, ranges_of(work.claim.numbers)),)

    found = shown(claimed(story, leaves, given=given))

    made = {leaf.tensor(tensor_name("dx", 2, leaf.item)) for leaf in leaves}
    assert not made & found.wanted.keys()
    assert list(found.wanted.values()).count("boundary") == len(leaves)


@pytest.mark.parametrize("lacks", ["y/1", "dx/2", "rows/2", "loss"])
def test_check_papers__leaf_lacks_something__there_is_nothing_to_replay(
    story: Story, lacks: str
) -> None:
    (leaf, *rest) = story.claims["cem"].leaves
    name = f"{lacks}/{leaf.item}"
    numbers = () if lacks == "loss" else leaf.numbers
    tensors = tuple(each for each in leaf.tensors if each[0] != name)
    fewer = leaf.model_copy(update={"tensors": tensors, "numbers": numbers})

    found = shown(claimed(story, [fewer, *rest]))

    assert fewer != leaf
    assert not found.is_replayed and not found.wanted and not found.rows
    assert found.findings.verdict == "mismatch"
