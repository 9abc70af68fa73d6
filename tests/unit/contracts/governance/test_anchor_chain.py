"""The running hash of an anchorer."""

import pytest

from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest

ROOT, BEACON = Digest(b"r" * 32), Digest(b"c" * 32)


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
