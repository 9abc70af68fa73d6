"""For all corpora and batches: every row once a pass, no row outside its shard, no mix-up."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Refused, TallystickError
from contracts.terms.items import ItemNumber
from contracts.terms.row_order import permuted
from training.config import DataConfig
from training.data.manifest import Manifest, Shard
from training.data.order import index_rows, row_numbers
from training.stages.torch_free import chunk_bounds

keys = st.binary(min_size=32, max_size=32)
sizes = st.lists(st.integers(1, 400), min_size=1, max_size=12)
batches = st.builds(
    DataConfig,
    rows_per_unit=st.integers(1, 5),
    units_per_step=st.integers(1, 6),
    seed=st.integers(0, 2**53 - 1),
)


def shards(lengths: list[int]) -> tuple[Shard, ...]:
    return tuple(
        Shard(digest=blob_digest(i.to_bytes(4, "big")), num_bytes=n) for i, n in enumerate(lengths)
    )


@given(num_rows=st.integers(1, 700), key=keys)
def test_permuted__every_length_and_key__is_a_permutation(num_rows: int, key: bytes) -> None:
    assert sorted(permuted(i, num_rows, key) for i in range(num_rows)) == list(range(num_rows))


@given(data=batches, num_rows=st.integers(1, 120), passes=st.integers(1, 3), key=keys)
def test_row_numbers__whole_passes__use_every_row_equally_often(
    data: DataConfig, num_rows: int, passes: int, key: bytes
) -> None:
    """Mutation that this catches: an item that starts one row late."""
    wanted = passes * num_rows
    used: list[int] = []
    for index in range(wanted // data.rows_per_unit + 1):
        used += row_numbers(blob_digest(key), data, num_rows, ItemNumber(index))

    assert set(Counter(used[:wanted]).values()) == {passes}


@given(lengths=sizes, sequence_length=st.integers(1, 60))
def test_index_rows__every_shard_list__rows_lie_in_their_shard_and_do_not_overlap(
    lengths: list[int], sequence_length: int
) -> None:
    listed = shards(lengths)
    if all(n <= sequence_length for n in lengths):
        with pytest.raises(Refused):
            index_rows(listed, sequence_length)
        return
    index = index_rows(listed, sequence_length)

    length_of = {shard.digest: shard.num_bytes for shard in listed}
    inputs = [
        (p.shard.digest, at)
        for p in map(index.position, range(index.num_rows))
        for at in range(p.offset, p.offset + p.length - 1)
    ]
    assert len(set(inputs)) == len(inputs)
    assert all(at + 1 < length_of[shard] for shard, at in inputs)
    assert index.num_rows == sum((n - 1) // sequence_length for n in lengths)


@given(data=st.binary(max_size=300))
def test_decoded__any_bytes__a_manifest_or_a_typed_refusal(data: bytes) -> None:
    try:
        Manifest.decoded(data)
    except TallystickError:
        return
    raise AssertionError("random bytes were read as a manifest")


@given(lengths=sizes, at=st.integers(0, 10**6), bit=st.integers(0, 7), drop=st.booleans())
def test_decoded__one_bit_or_byte_altered__refused_or_another_manifest(
    lengths: list[int], at: int, bit: int, drop: bool
) -> None:
    listed = shards([*lengths, 7])
    manifest = Manifest(train=listed[:-1], validation=listed[-1:])
    altered = bytearray(manifest.encoded())
    if drop:
        del altered[at % len(altered)]
    else:
        altered[at % len(altered)] ^= 1 << bit

    try:
        read = Manifest.decoded(bytes(altered))
    except TallystickError:
        return
    assert read.digest() == blob_digest(bytes(altered)) != manifest.digest()


@given(num_elements=st.integers(1, 5000), num_chunks=st.integers(1, 60))
def test_chunk_bounds__every_size__covers_each_element_once(
    num_elements: int, num_chunks: int
) -> None:
    num_chunks = min(num_chunks, num_elements)

    bounds = chunk_bounds(num_elements, num_chunks)

    assert [at for start, end in bounds for at in range(start, end)] == list(range(num_elements))
    lengths = [end - start for start, end in bounds]
    assert max(lengths) - min(lengths) <= 1
