"""The running hash of an anchorer."""

import pytest

from contracts.governance.anchor_chain import AnchoredBatch, anchored, fold_anchor_chain, recorded
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest

ROOT, BEACON = Digest(b"r" * 32), Digest(b"c" * 32)


def test_fold_anchor_chain__two_batches_or_none__folds_root_block_and_beacon_in_turn() -> None:
    anchor_chain = fold_anchor_chain((AnchoredBatch(ROOT, 5, BEACON), AnchoredBatch(ROOT, 9, None)))

    assert anchor_chain == anchored(recorded(anchored(ZERO_DIGEST, ROOT, 5), BEACON), ROOT, 9)
    assert fold_anchor_chain(()) == ZERO_DIGEST


@pytest.mark.parametrize(
    "batches",
    [
        (AnchoredBatch(ROOT, 5, BEACON), AnchoredBatch(ROOT, 5, BEACON)),
        (AnchoredBatch(ROOT, 5, None), AnchoredBatch(ROOT, 6, BEACON)),
    ],
    ids=["same block", "beacon left out"],
)
def test_fold_anchor_chain__order_that_the_contract_cannot_make__is_refused(
    batches: tuple[AnchoredBatch, ...],
) -> None:
    with pytest.raises(Malformed):
        fold_anchor_chain(batches)
