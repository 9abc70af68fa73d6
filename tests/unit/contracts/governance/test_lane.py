"""The running hash of an anchorer."""

import pytest

from contracts.governance.lane import AnchoredBatch, anchored, fold_lane, recorded
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest

ROOT, COIN = Digest(b"r" * 32), Digest(b"c" * 32)


def test_fold_lane__two_batches_or_none__folds_root_block_and_coin_in_turn() -> None:
    lane = fold_lane((AnchoredBatch(ROOT, 5, COIN), AnchoredBatch(ROOT, 9, None)))

    assert lane == anchored(recorded(anchored(ZERO_DIGEST, ROOT, 5), COIN), ROOT, 9)
    assert fold_lane(()) == ZERO_DIGEST


@pytest.mark.parametrize(
    "batches",
    [
        (AnchoredBatch(ROOT, 5, COIN), AnchoredBatch(ROOT, 5, COIN)),
        (AnchoredBatch(ROOT, 5, None), AnchoredBatch(ROOT, 6, COIN)),
    ],
    ids=["same block", "coin left out"],
)
def test_fold_lane__order_that_the_contract_cannot_make__is_refused(
    batches: tuple[AnchoredBatch, ...],
) -> None:
    with pytest.raises(Malformed):
        fold_lane(batches)
