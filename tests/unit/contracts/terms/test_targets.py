"""What items weigh by the counts of their targets, and which counts are taken?"""

from array import array
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.governance.record import with_targets
from contracts.governance.seals import derive_seal
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict, InvalidSeal, Malformed, UnknownVersion
from contracts.terms.history import decode_kept, encode_kept
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.messages import DataSpec
from contracts.terms.row_order import rows_at
from contracts.terms.targets import (
    ItemWeights,
    TargetCounts,
    item_weights,
    rounded_mean,
    target_counts,
)
from contracts.terms.work import RoundClosed
from tests.support.history import (
    JobMaker,
    claims_in,
    make_digest,
    make_members,
    make_spec,
    messages_of,
)
from tests.support.local_jobs import of_local_steps

COUNTS = target_counts(array("H", [1, 20, 300, 4000, 65_535, 6]), array("H", [7, 8]))
DATA = DataSpec(
    manifest=make_digest("manifest"),
    seed=3,
    tokenizer=ZERO_DIGEST,
    objective="sft",
    targets=COUNTS.digest(),
)


@cache
def maker_of(*, is_counted: bool = True) -> JobMaker:
    """A job on chats, whose history has the counts or lacks them."""
    changes = {"data": DATA, "units_per_step": 5, "rows_per_unit": 2}
    targets = COUNTS if is_counted else None
    return JobMaker(members=make_members("ab"), spec_changes=changes, targets=targets)


def test_decoded__encoded__come_back_and_no_other_spelling_does() -> None:
    assert TargetCounts.decoded(COUNTS.encoded()) == COUNTS == decode_kept(encode_kept(COUNTS))
    assert (list(COUNTS.of_train)[:3], list(COUNTS.of_validation)) == ([1, 20, 300], [7, 8])
    with pytest.raises(Malformed):
        TargetCounts.decoded(encode({**COUNTS.value(), "more": 1}))
    with pytest.raises(UnknownVersion):
        TargetCounts.decoded(encode({**COUNTS.value(), "kind": "target_counts.v2"}))


@pytest.mark.parametrize("change", [{"train": b"\1"}, {"train": b"\1\0\0\0"}, {"validation": b""}])
def test_target_counts__half_a_count_or_a_row_without_target__is_refused(
    change: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        TargetCounts(**({"train": b"\1\0", "validation": b"\1\0"} | change))


def test_item_weights__of_items__are_the_targets_of_their_rows() -> None:
    weights = item_weights(maker_of().spec, COUNTS)
    rows = rows_at(range(2, 8), 6, DATA.manifest, DATA.seed)

    assert weights.of(((ItemNumber(1), ItemNumber(4)),)) == sum(COUNTS.of_train[r] for r in rows)
    whole = ranges_of(map(ItemNumber, range(3)))  # a pass over the rows
    assert weights.of(whole) == sum(COUNTS.of_train)
    assert weights.mean({ItemNumber(0): 10, ItemNumber(1): 20}) == rounded_mean(
        [10, 20], [weights.of_item(ItemNumber(0)), weights.of_item(ItemNumber(1))]
    )


def test_item_weights__without_counts__are_rows() -> None:
    weights = ItemWeights(3, ZERO_DIGEST, 0)

    assert weights.of(((ItemNumber(1), ItemNumber(4)),)) == 9
    assert weights.mean({ItemNumber(0): 1, ItemNumber(7): 2}) == 2  # halves up
    assert weights.mean({}) is None


def test_item_weights__other_counts_than_the_spec_names__are_a_conflict() -> None:
    with pytest.raises(Conflict):
        item_weights(maker_of().spec, None)
    with pytest.raises(Conflict):
        item_weights(make_spec(), COUNTS)


def test_with_targets__known_or_others__is_a_conflict() -> None:
    other = target_counts(array("H", [1]), array("H", [1]))
    with pytest.raises(Conflict):
        with_targets(maker_of().record, COUNTS)
    with pytest.raises(Conflict):
        with_targets(maker_of(is_counted=False).record, other)


def test_derive_seal__job_on_chats__claims_weigh_their_targets() -> None:
    maker = maker_of()
    items = maker.step_items()

    maker.seal(items)

    (closed,) = messages_of(items, RoundClosed)
    weights = item_weights(maker.spec, COUNTS)
    assert dict(closed.claims) == {
        claim.digest(): weights.of(claim.items) for claim in claims_in(items, "work")
    }
    assert len(set(closed.weights.values())) > 1


def test_derive_seal__counts_that_the_history_lacks__is_refused() -> None:
    counted, lacking = maker_of(), maker_of(is_counted=False)
    joined = JobMaker(
        members=make_members("ab"), spec_changes=counted.spec_changes, targets=COUNTS
    ).step_items()

    with pytest.raises(InvalidSeal) as refused:
        derive_seal(lacking.record, lacking.under(joined), last=False)
    assert refused.value.data["part"] == "targets"


@pytest.mark.parametrize(
    "change",
    [
        {"data": DATA.model_dump() | {"targets": ZERO_DIGEST}},
        {"data": DATA.model_dump() | {"objective": "pretrain"}},
        {"data": DATA.model_dump() | {"objective": "dpo"}},
    ],
)
def test_data_spec__objective_and_targets_that_do_not_fit__are_refused(
    change: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        DataSpec(**change["data"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_local_steps(), "every_step"),
        ({"units_per_step": 2**9, "rows_per_unit": 2**6}, "at most 16384 rows"),
    ],
)
def test_job_spec__chats_that_it_cannot_weigh__are_refused(
    change: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        make_spec(stages=1, data=DATA, **change)
