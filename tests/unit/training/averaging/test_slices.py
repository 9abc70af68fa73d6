"""Bytes of gradients: digests, order of sums; the fake compute that swarm tests use."""

from typing import get_args

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Malformed, WrongBytes
from contracts.terms.messages import GradientCodecName
from tests.unit.training.swarm.factories import STAGE, A, B, Swarm, grad_commit, terms
from training.averaging.slices import in_peer_order, need_digest, slice_digest
from training.swarm.state import Closed


def test_in_peer_order__commits_in_any_order__ascend_by_peer_then_round() -> None:
    swarm = Swarm(terms(peers=2))
    swarm.join(A, B)
    swarm.work(A, 0, 1, 2)
    swarm.work(B, 3, 4, 5)
    close = swarm.phase(Closed).close
    commits = [grad_commit(B, close, ()), grad_commit(A, close, (), round=1)]
    commits.append(grad_commit(A, close, ()))

    ordered = in_peer_order(commits, STAGE)

    assert [(commit.peer, commit.round) for commit in ordered] == [(A, 0), (A, 1), (B, 0)]
    assert in_peer_order(commits, 1) == ()


def test_need_digest__one_bit_differs__is_refused() -> None:
    data = bytes(range(8))
    need_digest(data, slice_digest(data))

    with pytest.raises(WrongBytes):
        need_digest(bytes([1, *data[1:]]), slice_digest(data))


def test_slice_digest__half_an_element__is_refused() -> None:
    with pytest.raises(Malformed):
        slice_digest(b"123456")


def test_slice_digest__same_bytes_under_other_codecs__are_other_numbers() -> None:
    data = bytes(range(8))

    digests = {slice_digest(data, name) for name in get_args(GradientCodecName)}

    assert len(digests) == 3
    assert slice_digest(data, "bfloat16") == tensor_digest("bfloat16", (4,), data)
    with pytest.raises(WrongBytes):
        need_digest(data, slice_digest(data, "float16"), "bfloat16")
