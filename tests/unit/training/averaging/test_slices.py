"""Bytes of gradients: digests, and the order of sums."""

from typing import get_args

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Malformed
from contracts.terms.messages import GradientCodecName
from tests.support.history import JobMaker
from training.averaging.slices import in_peer_order, slice_digest


def test_in_peer_order__claims_in_any_order__ascend_by_group_and_peer_then_as_they_were_made() -> (
    None
):
    job = JobMaker()
    ann, bob, cem = (job.claim(member)[0] for member in job.members[:3])
    cem = cem.model_copy(update={"group": 1, "peer": bytes(32)})
    later = ann.model_copy(update={"seq": 1})
    pending = ann.model_copy(update={"round": ann.round + 1})

    ordered = in_peer_order([cem, pending, later, bob, ann], (0, 1))

    own = sorted([ann, bob], key=lambda claim: claim.peer)
    place = own.index(ann) + 1
    assert ordered == (*own[:place], later, pending, *own[place:], cem)
    assert in_peer_order([ann, cem], (1,)) == (cem,)


def test_slice_digest__half_an_element__is_refused() -> None:
    with pytest.raises(Malformed):
        slice_digest(b"123456")


def test_slice_digest__same_bytes_under_other_codecs__are_other_numbers() -> None:
    data = bytes(range(8))

    digests = {slice_digest(data, name) for name in get_args(GradientCodecName)}

    assert len(digests) == 3
    assert slice_digest(data, "bfloat16") == tensor_digest("bfloat16", (4,), data)
