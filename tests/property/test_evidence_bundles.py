"""What the market reads of an evidence bundle, and that it refuses whatever is none."""

import random
from functools import cache
from pathlib import Path

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.history import kept_digest
from contracts.terms.ids import Digest
from market.adapters.blobs import FileBlobs
from market.adapters.bundles import FileBundles
from tests.support.bundles import KINDS, Story, make_story, work_papers, write
from tests.support.dockets import begin_checked
from tests.support.market_world import one_chunk
from verification.auditing.bundle import ShownSum

SEED = 20_261_123


@cache
def story() -> Story:
    return make_story()


async def stored(folder: Path, data: bytes) -> tuple[FileBundles, Digest]:
    """A blob of a market, by its name."""
    blobs, name = FileBlobs(folder), blob_digest(data)
    await blobs.put(name, one_chunk(data), max_bytes=len(data))
    return FileBundles(blobs, begin_checked), name


@pytest.mark.parametrize("kind", KINDS)
async def test_read__whole_bundle__says_what_its_papers_bind(tmp_path: Path, kind: str) -> None:
    papers = KINDS[kind](story())
    bundles, name = await stored(tmp_path, write(papers, story(), tmp_path / "a").read_bytes())

    says = await bundles.read(name)

    claim, report = papers.claim, papers.report.claim
    work = claim.bucket.message if isinstance(claim, ShownSum) else claim.work.claim
    assert (says.domain, says.job) == (papers.domain, papers.spec.message.job())
    assert (says.subject, says.report) == (report.subject, report.digest())
    assert says.auditor == report.peer
    assert (says.subject == work.digest()) == (claim.repeated is None)
    assert {kept_digest(papers.opening), kept_digest(papers.report.signed)} < set(says.kept)


async def test_read__no_bundle_or_a_byte_of_its_papers_flipped__is_malformed(
    tmp_path: Path,
) -> None:
    whole = write(work_papers(story()), story(), tmp_path / "a").read_bytes()
    chance, papers = random.Random(SEED), work_papers(story()).encoded()
    starts = whole.index(papers)
    false = [b"", b"x", whole[:-1], whole + b"x"]
    for _ in range(20):
        place = starts + chance.randrange(len(papers))
        false.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    for data in false:
        bundles, name = await stored(tmp_path, data)
        with pytest.raises(Malformed):
            await bundles.read(name)


async def test_read__no_such_blob__is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await FileBundles(FileBlobs(tmp_path)).read(Digest(bytes(32)))
