"""No leaf of an audit file can be altered unseen: by seed, of any field path."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch, Unreadable
from tests.support.altering import Path, altered, leaves, one_of_every_field_path, replaced
from tests.support.audited import Audited, checked_job, paid_job
from tests.support.dockets import begin_checked
from tests.support.examples import examples
from tests.support.fake_chain import SHIPS
from verification.audit.audit_file import MAX_FILE_BYTES, Verdict, verify

SEED = 20_250_701


FILES: dict[str, Callable[[], Audited]] = {
    "one stage": lambda: paid_job(stages=1),
    "two stages": lambda: paid_job(stages=2),
    "checked": checked_job,
}


@cache
def decoded(name: str) -> Any:
    return decode(FILES[name]().data, max_bytes=MAX_FILE_BYTES)


def check(data: bytes, made: Audited) -> Verdict:
    return verify(data, SHIPS, pins=made.pins, begin=begin_checked)


def assert_refused(path: Path, name: str, chance: random.Random) -> None:
    if path == ("version",):  # a file of another version accuses nobody
        return
    data = encode(altered(decoded(name), path, chance))
    with pytest.raises(AuditMismatch) as caught:
        check(data, FILES[name]())
    found, meant = str(caught.value.data["path"]), "/".join(map(str, path))
    together = f"{meant}/".startswith(f"{found}/") or f"{found}/".startswith(f"{meant}/")
    is_in_code = meant.startswith("code/") and found.startswith("chain/")  # it names its chain
    same_element = found.split("/")[:2] == meant.split("/")[:2]
    assert together or is_in_code or same_element, (
        f"altered {meant}, reported {found}: {caught.value}"
    )


@pytest.mark.parametrize("name", FILES)
def test_verify__one_leaf_of_a_field_path_altered__fails_with_its_path(name: str) -> None:
    chance = random.Random(f"{SEED} {name}")
    chosen = one_of_every_field_path(decoded(name), SEED)

    assert len(chosen) > 150
    for path in chance.sample(list(chosen.values()), min(len(chosen), examples(50))):
        assert_refused(path, name, chance)


def test_decoded__checked_file__has_all_that_checking_says() -> None:
    fields = set(one_of_every_field_path(decoded("checked"), SEED))

    assert {
        "items/*/data/auditor_list.v1/auditors/*/stake",
        "items/*/message/job_spec.v10/rules/audit/thresholds",
        "items/*/message/step_beacon.v1/beacon",
        "items/*/message/work_claim.v1/subject",
        "items/*/message/work_claim.v1/reports/*",
        "items/*/leaves/*/numbers/*",
        "items/*/message/notice.v1/evidence",
    } <= fields


STRANGE: tuple[Any, ...] = (None, True, 0, 2**63 - 1, -1, b"", b"\xff" * 16, b"\0" * 32, "", [], {})


@pytest.mark.parametrize(("name", "times"), [("one stage", 30), ("checked", 10)])
def test_verify__any_part_replaced_by_something_else__is_a_mismatch_and_no_crash(
    name: str, times: int
) -> None:
    chance = random.Random(SEED)
    whole = decoded(name)
    paths = [path for path, _ in leaves(whole)]

    for _ in range(examples(times)):
        path = chance.choice(paths)
        path = path[: chance.randint(1, len(path))]
        changed = replaced(whole, path, lambda _: chance.choice(STRANGE))
        if changed == whole:
            continue
        # A list that is not shown leaves a verdict, of less worth.
        with suppress(AuditMismatch, Unreadable):
            assert not check(encode(changed), FILES[name]()).anchored
