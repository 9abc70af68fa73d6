"""No leaf of an audit file can be altered unseen: one of every field path, and 500 by seed."""

import random
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch
from tests.support.altering import Path, altered, field_path, leaves
from tests.support.audited import Settled, settled
from tests.support.fake_chain import SHIPS
from tests.support.history import DOMAIN
from verification.audit_file import MAX_FILE_BYTES, Verdict, verify

SEED = 20_250_701
NUM_BY_SEED = 500


@cache
def decoded(stages: int) -> Any:
    return decode(settled(stages=stages).data, max_bytes=MAX_FILE_BYTES)


def check(data: bytes, made: Settled) -> Verdict:
    return verify(data, SHIPS, anchor=made.anchor, settlement=DOMAIN.settlement)


def one_of_every_field_path(stages: int) -> dict[str, Path]:
    """A leaf of every field path, chosen by seed."""
    chance = random.Random(SEED)
    by_field: dict[str, list[Path]] = {}
    for path, _ in leaves(decoded(stages)):
        by_field.setdefault(field_path(decoded(stages), path), []).append(path)
    return {name: chance.choice(paths) for name, paths in by_field.items()}


def assert_refused(path: Path, stages: int, chance: random.Random) -> None:
    made = settled(stages=stages)
    data = encode(altered(decoded(stages), path, chance))
    with pytest.raises(AuditMismatch) as caught:
        check(data, made)
    found, meant = str(caught.value.data["path"]), "/".join(map(str, path))
    together = f"{meant}/".startswith(f"{found}/") or f"{found}/".startswith(f"{meant}/")
    same_element = found.split("/")[:2] == meant.split("/")[:2]
    assert together or same_element, f"altered {meant}, reported {found}: {caught.value}"


def test_verify__untouched_file__is_anchored() -> None:
    for stages in (1, 2):
        verdict = check(settled(stages=stages).data, settled(stages=stages))

        assert verdict.anchored
        assert verdict.checked["snapshots"] == 2
        assert verdict.work == "unchecked"


@pytest.mark.parametrize("stages", [1, 2])
def test_verify__one_leaf_of_every_field_path_altered__fails_with_its_path(stages: int) -> None:
    chance = random.Random(SEED + stages)
    chosen = one_of_every_field_path(stages)

    for path in chosen.values():
        assert_refused(path, stages, chance)

    assert len(chosen) > 150


def test_verify__five_hundred_leaves_by_seed_altered__fails_with_their_paths() -> None:
    chance = random.Random(SEED)
    paths = [path for path, _ in leaves(decoded(1))]

    for path in chance.sample(paths, NUM_BY_SEED):
        assert_refused(path, 1, chance)


STRANGE: tuple[Any, ...] = (None, True, 0, 2**63 - 1, -1, b"", b"\xff" * 16, b"\0" * 32, "", [], {})


def test_verify__any_part_replaced_by_something_else__is_a_mismatch_and_no_crash() -> None:
    chance = random.Random(SEED)
    paths = [path for path, _ in leaves(decoded(1))]

    for _ in range(250):
        path = chance.choice(paths)
        path = path[: chance.randint(1, len(path))]
        changed = replaced(decoded(1), path, chance)
        if changed == decoded(1):
            continue
        with pytest.raises(AuditMismatch):
            check(encode(changed), settled())


def replaced(value: Any, path: Path, chance: random.Random) -> Any:
    """A copy in which what stands at `path`, a leaf or more, is something strange."""
    changed = deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = chance.choice(STRANGE)
    return changed
