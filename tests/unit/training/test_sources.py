"""Are bytes of files, buffers and parts the same bytes, wherever a read begins and ends?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from training.models import sources
from training.models.sources import (
    BytesSource,
    FileSource,
    JoinedSource,
    PartsSource,
    RangeSource,
    Source,
    parts_of,
    read,
)

TEXT = bytes(range(100))


def in_a_file(folder: Path) -> Source:
    (folder / "text").write_bytes(TEXT)
    return FileSource(folder / "text")


def joined(folder: Path) -> Source:
    file = in_a_file(folder)
    pieces: list[Source] = [BytesSource(TEXT[:30]), BytesSource(b""), RangeSource(file, 30, 71)]
    return JoinedSource([*pieces, BytesSource(memoryview(TEXT)[71:])])


def in_parts(folder: Path) -> Source:
    index = parts_of(BytesSource(TEXT), part_bytes=7)
    parts = {blob_digest(TEXT[at : at + 7]): TEXT[at : at + 7] for at in range(0, 100, 7)}
    return PartsSource(index, lambda name: BytesSource(parts[name]))


@pytest.mark.parametrize("made", [in_a_file, joined, in_parts])
def test_read__any_range__is_those_bytes(made: Callable[[Path], Source], tmp_path: Path) -> None:
    source = made(tmp_path)

    assert source.num_bytes == 100
    for start in range(0, 101, 3):
        for end in range(start, 101, 5):
            assert read(source, start, end) == TEXT[start:end]
    with pytest.raises(Malformed):
        read(source, 99, 101)


def test_read__file_that_became_shorter__malformed(tmp_path: Path) -> None:
    source = in_a_file(tmp_path)
    (tmp_path / "text").write_bytes(TEXT[:50])

    with pytest.raises(Malformed, match="ends at 50"):
        read(source, 40, 60)


def test_read__part_of_another_size_than_the_index_says__malformed() -> None:
    index = parts_of(BytesSource(TEXT), part_bytes=60)
    source = PartsSource(index, lambda name: BytesSource(TEXT[:59]))

    with pytest.raises(Malformed, match="part 0 has 59 bytes"):
        read(source, 0, 10)


def test_parts_of__a_source__is_read_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE", 8)

    class Watched(BytesSource):
        most = 0

        def read_into(self, start: int, into: memoryview) -> None:
            """See `Source.read_into`."""
            Watched.most = max(Watched.most, into.nbytes)
            super().read_into(start, into)

    index = parts_of(Watched(TEXT), part_bytes=30)

    assert Watched.most == 8
    assert index.parts[3] == blob_digest(TEXT[90:])
    assert index.num_bytes == 100 and isinstance(index.digest(), bytes)
    assert Digest(index.digest()) == blob_digest(index.encoded())
