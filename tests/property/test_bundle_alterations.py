"""No leaf of a bundle's papers, and no byte of its file, can be altered unseen."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch, Unreadable
from tests.support.altering import Path as LeafPath
from tests.support.altering import altered, one_of_every_field_path
from tests.support.bundles import KINDS, Story, made_digest, make_story, shown, work_papers, write
from tests.support.dockets import begin_checked
from verification.auditing.bundle import MAX_PAPERS_BYTES, read_papers
from verification.auditing.bundle_bytes import BundledBytes, show
from verification.auditing.bundle_file import BundleFile

SEED = 20_261_121
NUM_FLIPPED = 100


@cache
def story() -> Story:
    return make_story()


@cache
def decoded(kind: str) -> Any:
    return decode(KINDS[kind](story()).encoded(), max_bytes=MAX_PAPERS_BYTES)


def meant_by(path: LeafPath) -> str:
    """Where an altered leaf shows: the chain is under the first wallet signature."""
    return "spec" if path[0] == "chain" else "/".join(map(str, path))


@pytest.mark.parametrize("kind", KINDS)
def test_papers__one_leaf_of_every_field_path_altered__fails_at_its_path(kind: str) -> None:
    chance, chosen = random.Random(f"{SEED} {kind}"), one_of_every_field_path(decoded(kind), SEED)

    for path in chosen.values():
        if path == ("version",):  # a file of another version accuses nobody
            continue
        with pytest.raises(AuditMismatch) as caught:
            shown(read_papers(encode(altered(decoded(kind), path, chance))))

        found, meant = str(caught.value.data["path"]), meant_by(path)
        together = f"{meant}/".startswith(f"{found}/") or f"{found}/".startswith(f"{meant}/")
        assert together, f"altered {meant}, reported {found}: {caught.value}"

    assert len(chosen) > 120


def test_file__bytes_flipped_by_seed__refused_or_of_no_account(tmp_path: Path) -> None:
    whole = write(work_papers(story()), story(), tmp_path / "a.bundle")
    data, path, chance = whole.read_bytes(), tmp_path / "b.bundle", random.Random(SEED)
    refused = 0

    for _ in range(NUM_FLIPPED):
        place = chance.randrange(len(data))
        path.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
        )
        try:
            with BundleFile(path) as file:
                found = show(file, begin_checked)
                BundledBytes(found, file, made_digest).check()
            assert found.papers == work_papers(story())  # a date, or a mode
        except (AuditMismatch, Unreadable):
            refused += 1

    assert refused > NUM_FLIPPED / 2
