"""Which chunks does a job sum, from whose parts, for whom?"""

import pytest

from contracts.terms.chunks import Chunk, Chunking
from contracts.terms.ids import MAX_CHUNKS, ChunkIndex, StageIndex
from tests.support.history import MODEL, make_spec
from tests.support.local_jobs import of_local_steps

TIED = Chunking(3, 2, is_tied=True)


def chunk(stage: int, number: int) -> Chunk:
    return StageIndex(stage), ChunkIndex(number)


@pytest.mark.parametrize("is_tied", [False, True])
def test_chunking__one_stage__has_its_chunks_and_shares_none(is_tied: bool) -> None:
    chunking = Chunking(1, 3, is_tied)

    assert chunking.all == chunking.of_stage(StageIndex(0)) == tuple(chunk(0, n) for n in range(3))
    assert chunking.num_all == 3


def test_chunking__untied_stages__each_sums_and_applies_its_own() -> None:
    chunking = Chunking(2, 2, is_tied=False)

    assert chunking.all == (chunk(0, 0), chunk(0, 1), chunk(1, 0), chunk(1, 1))
    for stage in map(StageIndex, range(2)):
        assert all(chunking.stages_of(each) == (stage,) for each in chunking.of_stage(stage))


def test_chunking__tied_stages__shared_chunks_are_summed_by_the_first_for_both_ends() -> None:
    shared = (chunk(0, 2), chunk(0, 3))

    assert TIED.of_stage(StageIndex(0)) == (chunk(0, 0), chunk(0, 1), *shared)
    assert TIED.of_stage(StageIndex(1)) == (chunk(1, 0), chunk(1, 1))
    assert TIED.of_stage(StageIndex(2)) == (chunk(2, 0), chunk(2, 1), *shared)
    assert [TIED.stages_of(each) for each in shared] == [(0, 2), (0, 2)]
    assert len(TIED.all) == len(set(TIED.all)) == TIED.num_all == 8


def test_chunking__several_vectors_of_one_stage__are_cut_one_after_the_other() -> None:
    chunking = Chunking(1, 2, is_tied=True, num_vectors=3)

    assert chunking.all == chunking.of_stage(StageIndex(0)) == tuple(chunk(0, n) for n in range(6))
    assert chunking.num_all == 6


def test_chunking__stage_or_chunk_that_is_not_there__nobody_has_to_do_with_it() -> None:
    assert TIED.of_stage(StageIndex(3)) == ()
    assert TIED.stages_of(chunk(2, 2)) == ()


def test_job_spec__moments_whose_steps_have_no_bound__refused() -> None:
    local = of_local_steps(moments="mean")

    assert make_spec(**local).chunking.num_all == 3 * make_spec(**local).batch.chunks
    optimizer = make_spec().optimizer.model_copy(update={"beta1": 900_000, "beta2": 810_000})
    with pytest.raises(ValueError, match="moments: mean"):
        make_spec(**local, optimizer=optimizer)


@pytest.mark.parametrize(("stages", "is_tied", "most"), [(2, False, 2048), (3, True, 1024)])
def test_job_spec__more_chunks_than_a_round_names_reducers__refused(
    stages: int, is_tied: bool, most: int
) -> None:
    model = MODEL.model_copy(update={"tied_head": is_tied, "num_layers": 3})

    assert make_spec(model=model, stages=stages, chunks=most).chunking.num_all <= MAX_CHUNKS
    with pytest.raises(ValueError, match="at most 4096 chunks"):
        make_spec(model=model, stages=stages, chunks=most + 1)
