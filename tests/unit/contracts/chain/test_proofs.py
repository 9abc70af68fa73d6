"""Headers, accounts and storage, proved from a block hash; the oracle for tries is py-trie."""

import random
from dataclasses import dataclass

import pytest
import rlp

from contracts.chain.proofs import (
    EMPTY_CODE,
    EMPTY_NODE,
    EMPTY_TRIE,
    AccountState,
    Header,
    prove_account,
    prove_slot,
    prove_value,
)
from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed, WrongBytes
from contracts.terms.ids import Address
from tests.support.fake_chain import FakeChain, rpc_block

HOLDER, NOBODY = Address(b"h" * 20), Address(b"n" * 20)
Nodes = tuple[bytes, ...]


@dataclass(frozen=True)
class Proved:
    """An account with 60 slots, and proofs of 20 of them and of 20 that are empty."""

    words: dict[int, int]
    header: Header
    account: Nodes
    nobody: Nodes
    slots: dict[int, Nodes]

    @property
    def state(self) -> AccountState:
        """The account, proved."""
        state = prove_account(self.header.state_root, HOLDER, self.account)
        assert state is not None
        return state


@pytest.fixture(scope="module")
def proved() -> Proved:
    chain = FakeChain()
    chain.deploy(HOLDER, b"code")
    chance = random.Random(5)
    words = {chance.randrange(2**64): chance.choice((1, 2**255)) for _ in range(60)}
    chain.storage[HOLDER] = words
    header = chain.mine(1000)
    slots = [*list(words)[:20], *range(20)]
    account, proofs = chain.prove(HOLDER, slots)
    nobody, _ = chain.prove(NOBODY, [])
    return Proved(words, header, account, nobody, dict(zip(slots, proofs, strict=True)))


def test_prove_account__present_and_absent__are_both_proved(proved: Proved) -> None:
    state = proved.state

    assert (state.nonce, state.balance, state.code_hash) == (1, 0, keccak(b"code"))
    assert prove_account(proved.header.state_root, NOBODY, proved.nobody) is None


def test_prove_slot__present_and_absent__are_both_proved(proved: Proved) -> None:
    root = proved.state.storage_root

    for slot, proof in proved.slots.items():
        assert prove_slot(root, slot, proof) == proved.words.get(slot, 0)


def test_prove_value__any_node_changed_dropped_or_added__is_refused(proved: Proved) -> None:
    slot, proof = next(iter(proved.slots.items()))

    others = [proof[:-1], proof[1:], (*proof, proof[-1]), (*proof, EMPTY_NODE), ()]
    others += [(*proof[:n], proof[n][:-1] + b"\0", *proof[n + 1 :]) for n in range(len(proof))]
    for other in others:
        with pytest.raises(WrongBytes):
            prove_slot(proved.state.storage_root, slot, other)


def test_prove_value__empty_trie__is_proved_by_its_one_empty_node() -> None:
    assert prove_value(EMPTY_TRIE, b"key", [EMPTY_NODE]) is None
    with pytest.raises(WrongBytes):
        prove_value(EMPTY_TRIE, b"key", [])


@pytest.mark.parametrize(
    "node",
    [
        b"\xc0",  # an empty list
        rlp.encode([b"\x20", b"x", b"y"]),
        rlp.encode([b"\x90" + bytes(32), b"x"]),
        rlp.encode([b"", b"x"]),
        rlp.encode([[b"x"], b"x"]),
        b"\xb8",
        rlp.encode(b"text"),
    ],
)
def test_prove_value__no_trie_node__is_refused(node: bytes) -> None:
    with pytest.raises(WrongBytes):
        prove_value(keccak(node), b"key", [node])


def test_header__answer_of_a_node__has_its_hash_or_is_refused(proved: Proved) -> None:
    header = proved.header

    assert Header.from_rpc(rpc_block(header)) == header
    assert (header.number, header.timestamp) == (0, 1000)
    with pytest.raises(WrongBytes):
        Header.from_rpc(rpc_block(header) | {"gasUsed": "0x5"})


@pytest.mark.parametrize("change", [{"hash": None}, {"number": "x"}, {"miner": "0xzz"}])
def test_header__no_header__is_malformed(proved: Proved, change: dict[str, object]) -> None:
    with pytest.raises((Malformed, WrongBytes)):
        Header.from_rpc(rpc_block(proved.header) | change)


def test_empty_code__hash__is_that_of_accounts_without_code() -> None:
    assert EMPTY_CODE.hex().startswith("c5d24601")
