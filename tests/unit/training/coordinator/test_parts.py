"""Pieces of the coordinator that need no swarm: what it takes, what it posts, how it waits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.record import JobRecord, open_job
from contracts.terms import errors
from contracts.terms.history import unit_leaves_root
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import (
    AveragedChunk,
    AverageMember,
    AverageSet,
    GradCommit,
    GradientCodecName,
    PartDigest,
    UnitLeaf,
)
from contracts.terms.moments import UnixMillis
from tests.support.fakes.coordinator import MemoryFeed
from tests.support.history import DOMAIN, make_session
from tests.support.swarm_job import Papers, make_papers
from tests.unit.training.coordinator.books import open_book
from training.coordinator.acceptance import check_chunk, check_commit
from training.coordinator.book import REPORT, Book, Signer
from training.coordinator.feeding import GATHER, Feeding
from training.coordinator.ports import StepReport, decode_report
from training.journal import Journal, Row
from training.telling import tell_nobody

STAGE = StageIndex(0)
SEEN = StepReport(StepNumber(1), 123, 456, UnixMillis(789))


@pytest.fixture(scope="module")
def papers() -> Papers:
    return make_papers("ann", steps=2, units_per_step=2, rows_per_unit=4, chunks=2)


@pytest.fixture(scope="module")
def record(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> JobRecord:
    with Journal(tmp_path_factory.mktemp("book") / "j") as journal:
        opening = open_book(papers, journal).record_of_job.opening
    signed = papers.coordinator.sign(opening, DOMAIN)
    return open_job(papers.spec, signed, DOMAIN)


def leaf(unit: int, **changed: Any) -> UnitLeaf:
    values: dict[str, Any] = {
        "unit": ItemNumber(unit),
        "x": ZERO_DIGEST,
        "y": ZERO_DIGEST,
        "dy": ZERO_DIGEST,
        "dx": ZERO_DIGEST,
        "loss": 1,
    }
    return UnitLeaf(**(values | changed))


def commit(record: JobRecord, **changed: Any) -> GradCommit:
    values: dict[str, Any] = {
        "job": record.job,
        "step": 1,
        "round": 0,
        "stage": STAGE,
        "peer": make_session("ann").peer,
        "step_close": ZERO_DIGEST,
        "previous_seal": record.previous,
        "state_root": ZERO_DIGEST,
        "units_root": unit_leaves_root([leaf(0), leaf(1)]),
        "num_units": 2,
        "num_samples": 8,
        "parts": tuple(part(chunk) for chunk in range(2)),
        "reports": (),
    }
    return GradCommit(**(values | changed))


def part(chunk: int, norm_squared: int = 10**12) -> PartDigest:
    return PartDigest(chunk=ChunkIndex(chunk), digest=ZERO_DIGEST, norm_squared=norm_squared)


def test_check_commit__as_it_should_be__is_taken(record: JobRecord) -> None:
    check_commit(record, commit(record), [leaf(0), leaf(1)])


@pytest.mark.parametrize(
    ("changed", "leaves"),
    [
        ({"previous_seal": ZERO_DIGEST}, [leaf(0), leaf(1)]),
        ({"num_units": 3}, [leaf(0), leaf(1)]),
        ({"num_samples": 9}, [leaf(0), leaf(1)]),
        ({"parts": (part(0),)}, [leaf(0), leaf(1)]),
        ({"parts": (part(1), part(0))}, [leaf(0), leaf(1)]),
        ({"reports": (ZERO_DIGEST,)}, [leaf(0), leaf(1)]),
        ({}, [leaf(1), leaf(0)]),
        ({}, [leaf(0), leaf(0)]),
        ({}, [leaf(0), leaf(1, loss=None)]),
        ({}, [leaf(0), leaf(1, dx=Digest(bytes([1]) * 32))]),
        ({}, [leaf(0), leaf(1, y=Digest(bytes([1]) * 32))]),
    ],
)
def test_check_commit__no_seal_could_hold_it__is_refused(
    record: JobRecord, changed: dict[str, Any], leaves: list[UnitLeaf]
) -> None:
    with pytest.raises(errors.Malformed):
        check_commit(
            record, commit(record, **{"units_root": unit_leaves_root(leaves)} | changed), leaves
        )


def test_check_commit__other_leaves_than_it_binds__is_refused(record: JobRecord) -> None:
    with pytest.raises(errors.Malformed, match="binds other leaves"):
        check_commit(record, commit(record), [leaf(0), leaf(2)])


def average_of(*commits: GradCommit) -> AverageSet:
    members = tuple(AverageMember(grad_commit=each.digest(), weight=8) for each in commits)
    return AverageSet(
        job=commits[0].job, step=StepNumber(1), step_close=ZERO_DIGEST, members=members
    )


def averaged(average: AverageSet, norm_squared: int) -> AveragedChunk:
    return AveragedChunk(
        job=average.job,
        step=average.step,
        stage=STAGE,
        peer=make_session("ann").peer,
        average_set=average.digest(),
        chunk=ChunkIndex(0),
        chunk_digest=ZERO_DIGEST,
        norm_squared=norm_squared,
    )


def test_check_chunk__mean_longer_than_its_parts__is_refused(record: JobRecord) -> None:
    long, short = commit(record, round=0), commit(record, round=1, parts=(part(0, 0), part(1, 0)))
    average = average_of(long, short)

    check_chunk(record.spec, averaged(average, 10**12 // 4), average, [long, short])
    with pytest.raises(errors.Malformed, match="longer"):
        check_chunk(record.spec, averaged(average, 10**12 // 4 + 10**7), average, [long, short])
    with pytest.raises(errors.Malformed, match="longer"):
        check_chunk(record.spec, averaged(average, 0), average, [])
    other = average.model_copy(update={"step": 2})
    with pytest.raises(errors.Malformed, match="another"):
        check_chunk(record.spec, averaged(other, 0), average, [long, short])


@pytest.mark.parametrize(("codec", "bits"), [("none", 20), ("float16", 11), ("bfloat16", 8)])
def test_check_chunk__mean_longer_by_what_its_codec_rounds__passes_and_not_by_more(
    record: JobRecord, codec: GradientCodecName, bits: int
) -> None:
    parts = (part(0, 10**24), part(1, 10**24))  # so long that the least allowance is nothing
    long = commit(record, parts=parts)
    average = average_of(long)
    rounded, longer = (10**24 * (2**more + 1) ** 2 // 4**more for more in (bits, bits - 2))

    rules = record.spec.rules.model_copy(update={"gradient_codec": codec})
    spec = record.spec.model_copy(update={"rules": rules})
    check_chunk(spec, averaged(average, rounded), average, [long])
    with pytest.raises(errors.Malformed, match="longer"):
        check_chunk(spec, averaged(average, longer), average, [long])


def test_check__tied_head_over_two_stages__parts_and_means_of_the_shared_chunks_are_known(
    record: JobRecord,
) -> None:
    batch = record.spec.batch.model_copy(update={"stages": 2, "layer_ends": (1, 2)})
    tied = replace(record, spec=record.spec.model_copy(update={"batch": batch}))
    parts = tuple(part(number) for number in range(4))
    first = commit(tied, parts=parts, units_root=unit_leaves_root([leaf(0, loss=None)]))
    first = first.model_copy(update={"num_units": 1, "num_samples": 4})
    last = commit(tied, parts=parts, stage=StageIndex(1))
    average = average_of(first, last)
    shared = averaged(average, 4 * 10**12).model_copy(update={"chunk": ChunkIndex(2)})

    check_commit(tied, first, [leaf(0, loss=None)])
    check_commit(tied, last, [leaf(0), leaf(1)])
    check_chunk(tied.spec, shared, average, [first, last])
    with pytest.raises(errors.Malformed, match="longer"):
        check_chunk(tied.spec, shared, average, [first])
    with pytest.raises(errors.Malformed, match="parts are wrong"):
        check_commit(tied, last.model_copy(update={"parts": parts[:2]}), [leaf(0), leaf(1)])


class Failing(MemoryFeed):
    """A market that fails in the given ways first."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    async def post(self, items: Sequence[bytes]) -> None:
        """See `Feed.post`."""
        if self.failures:
            raise self.failures.pop(0)
        await super().post(items)


async def test_feeding__market_down__posts_in_order_after_growing_pauses(
    papers: Papers, tmp_path: Path
) -> None:
    pauses: list[float] = []

    async def pause(span: float) -> None:
        pauses.append(span)

    feed = Failing(errors.ServiceUnreachable("a"), errors.ServiceUnreachable("b"))
    with Journal(tmp_path / "j") as journal:
        book = open_book(papers, journal)
        journal.append([Row(REPORT, SEEN.encoded())])
        feeding = Feeding(book, feed, tell=tell_nobody, pause=pause)

        await feeding.post_once()

        assert pauses == [0.1, 0.2]
        assert feeding.is_done
        assert feed.items == [row.data for row in journal.rows() if row.kind == "kept"]
        assert feed.reports == [SEEN]


@pytest.mark.parametrize(
    "error", [errors.Forbidden("a"), errors.Conflict("b"), errors.Equivocation("c")]
)
async def test_feeding__market_refuses__ends_with_that_after_one_post(
    papers: Papers, tmp_path: Path, error: errors.TallystickError
) -> None:
    told: list[tuple[str, object]] = []

    async def pause(span: float) -> None:
        assert span == GATHER

    with Journal(tmp_path / "j") as journal:
        feeding = Feeding(
            open_book(papers, journal),
            Failing(error),
            tell=lambda event, **fields: told.append((event, fields.get("code"))),
            pause=pause,
        )

        with pytest.raises(type(error)):
            await feeding.run()

        assert told == [("feed_refused", error.code)]
        assert not feeding.is_done


def test_book__validation__is_kept_once_with_the_report_of_its_step(
    papers: Papers, tmp_path: Path
) -> None:
    with Journal(tmp_path / "j") as journal:
        open_book(papers, journal)
        journal.append([Row(REPORT, SEEN.encoded())])
        book = open_book(papers, journal)

        book.note_validation(StepNumber(2), 5)
        book.note_validation(StepNumber(1), 6)
        book.note_validation(StepNumber(1), 7)

        rows = [row.data for row in journal.rows() if row.kind == REPORT]
        assert [decode_report(row).validation_millionths for row in rows] == [None, 6]
        assert open_book(papers, journal).newest_report == replace(SEEN, validation_millionths=6)


def test_book__folder_of_another_job_or_key__is_a_conflict(papers: Papers, tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        open_book(papers, journal)
        other = make_papers("ann", steps=3)
        with pytest.raises(errors.Conflict):
            open_book(other, journal)
        signer = Signer(papers.coordinator, make_session("another"), DOMAIN)
        with pytest.raises(errors.Conflict):
            Book(journal, papers.spec, papers.opening, signer, tell_nobody)
