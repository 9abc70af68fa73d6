"""Do Python's own values hold against a second implementation, and is the file the one written?

`contracts/vectors.json` is what forge checks against the contracts (`test/Vectors.t.sol`). Here
eth_account hashes and recovers the typed data, proofs are folded from their packed form, and the
window is stepped through its histories again.
"""

import json
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.governance import lane
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.merkle import PayNode, Proof, SumNode
from tests.contracts.make_vectors import KINDS, VECTORS, render
from tests.support.settlement_window import Event, Terms, Ticked, Window, advance

FOUND: dict[str, Any] = json.loads(VECTORS.read_text(encoding="ascii"))
DOMAIN_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _siblings(row: dict[str, Any], index: int, size: int) -> list[tuple[bytes, bool]]:
    path, sides = _bytes(row["paths"][index]), int(row["sides"][index])
    parts = [path[start : start + size] for start in range(0, len(path), size)]
    return [(part, bool(sides >> level & 1)) for level, part in enumerate(parts)]


def _sum_proof(row: dict[str, Any], index: int) -> Proof[SumNode]:
    return Proof(
        tuple(
            (SumNode(Digest(part[:32]), BaseUnits(int.from_bytes(part[32:], "big"))), left)
            for part, left in _siblings(row, index, 44)
        )
    )


def _pay_proof(row: dict[str, Any], index: int) -> Proof[PayNode]:
    def node(part: bytes) -> PayNode:
        earned, vested = (int.from_bytes(part[at : at + 12], "big") for at in (32, 44))
        return PayNode(Digest(part[:32]), BaseUnits(earned), BaseUnits(vested))

    return Proof(tuple((node(part), left) for part, left in _siblings(row, index, 56)))


def test_vectors__file__is_what_the_generator_writes() -> None:
    assert VECTORS.read_text(encoding="ascii") == render()


@pytest.mark.parametrize("row", FOUND["messages"], ids=lambda row: row["name"])
def test_vectors__typed_data__equals_eth_account(row: dict[str, Any]) -> None:
    fields = [each.split() for each in row["typeString"].split("(")[1][:-1].split(",")]
    words = _bytes(row["encoded"])
    values = {
        name: _value(kind, words[32 * i : 32 * i + 32]) for i, (kind, name) in enumerate(fields)
    }
    signable = encode_typed_data(
        full_message={
            "types": {
                "EIP712Domain": DOMAIN_FIELDS,
                row["name"]: [{"name": name, "type": kind} for kind, name in fields],
            },
            "primaryType": row["name"],
            "domain": {
                "name": "Tallystick",
                "version": "1",
                "chainId": int(FOUND["domain"]["chainId"]),
                "verifyingContract": FOUND["domain"]["settlement"],
            },
            "message": values,
        }
    )

    digest = keccak(b"\x19" + signable.version + signable.header + signable.body)
    signer = Account.recover_message(signable, signature=_bytes(row["signature"]))

    assert signable.header == _bytes(FOUND["domain"]["separator"])
    assert signable.body == _bytes(row["structHash"])
    assert digest == _bytes(row["digest"])
    assert _bytes(signer) == _bytes(row["signer"])


def _value(kind: str, word: bytes) -> object:
    if kind.startswith("uint"):
        return int.from_bytes(word, "big")
    if kind == "bool":
        return word[-1] == 1
    return "0x" + word[12:].hex() if kind == "address" else word


@pytest.mark.parametrize("row", FOUND["settlementTrees"], ids=lambda row: len(row["accounts"]))
def test_vectors__settlement_tree__every_path_leads_to_the_root(row: dict[str, Any]) -> None:
    top = SumNode(Digest(_bytes(row["root"])), BaseUnits(int(row["sum"])))

    for index, account in enumerate(row["accounts"]):
        leaf = merkle.settlement_leaf(
            Address(_bytes(account)),
            Digest(_bytes(row["jobsRoots"][index])),
            BaseUnits(int(row["cumulatives"][index])),
        )
        assert merkle.fold(leaf, _sum_proof(row, index), merkle.sum_node) == top

    assert int(row["sum"]) == sum(int(each) for each in row["cumulatives"])


@pytest.mark.parametrize("row", FOUND["jobsTrees"], ids=lambda row: len(row["jobs"]))
def test_vectors__jobs_tree__every_path_leads_to_the_root(row: dict[str, Any]) -> None:
    top = SumNode(Digest(_bytes(row["root"])), BaseUnits(int(row["sum"])))

    for index, job in enumerate(row["jobs"]):
        leaf = merkle.job_leaf(JobId(_bytes(job)), BaseUnits(int(row["cumulatives"][index])))
        assert merkle.fold(leaf, _sum_proof(row, index), merkle.sum_node) == top


@pytest.mark.parametrize("row", FOUND["payTrees"], ids=lambda row: len(row["accounts"]))
def test_vectors__pay_tree__every_path_leads_to_the_root(row: dict[str, Any]) -> None:
    sums = (BaseUnits(int(row["earnedSum"])), BaseUnits(int(row["vestedSum"])))
    top = PayNode(Digest(_bytes(row["root"])), *sums)

    for index, account in enumerate(row["accounts"]):
        earned, vested = (BaseUnits(int(row[key][index])) for key in ("earned", "vested"))
        leaf = merkle.pay_leaf(Address(_bytes(account)), earned, vested)
        assert merkle.fold(leaf, _pay_proof(row, index), merkle.pay_node) == top


@pytest.mark.parametrize("row", FOUND["batches"], ids=lambda row: len(row["jobs"]))
def test_vectors__batch__every_path_leads_to_the_root(row: dict[str, Any]) -> None:
    for index, (job, step, seal) in enumerate(
        zip(row["jobs"], row["steps"], row["seals"], strict=True)
    ):
        leaf = merkle.batch_leaf(JobId(_bytes(job)), int(step), Digest(_bytes(seal)))
        proof = Proof(tuple((Digest(part), left) for part, left in _siblings(row, index, 32)))
        assert merkle.fold(leaf, proof, merkle.plain_node) == _bytes(row["root"])


@pytest.mark.parametrize("row", FOUND["lanes"], ids=lambda row: row["blocks"][0])
def test_vectors__lane__folds_batch_by_batch(row: dict[str, Any]) -> None:
    batches = [
        lane.AnchoredBatch(Digest(_bytes(root)), int(block), Digest(_bytes(coin)))
        for root, block, coin in zip(row["roots"], row["blocks"], row["coins"], strict=True)
    ]

    for number, recorded in enumerate(row["recorded"], start=1):
        assert lane.fold_lane(batches[:number]) == _bytes(recorded)


@pytest.mark.parametrize("row", FOUND["windows"])
def test_vectors__window__same_history(row: dict[str, Any]) -> None:
    terms = Terms(
        challenge_window=int(row["challengeWindow"]),
        announcement_window=int(row["announcementWindow"]),
        execution_window=int(row["executionWindow"]),
        min_epoch_length=int(row["minEpochLength"]),
    )
    window = Window()

    for index, kind in enumerate(row["events"]):
        at = int(row["at"][index])
        event: Event = KINDS[kind](EpochNumber(int(row["epochs"][index])), at)
        time_passed, _ = advance(window, Ticked(at), terms)
        window, _ = advance(window, event, terms)
        assert (window != time_passed) == row["accepted"][index]
        assert window.state.value == row["states"][index]
        assert (window.epoch or 0) == int(row["numbers"][index])


def test_vectors__windows__visit_every_state_and_event_both_ways() -> None:
    states = {state for row in FOUND["windows"] for state in row["states"]}
    outcomes = {
        outcome
        for row in FOUND["windows"]
        for outcome in zip(row["events"], row["accepted"], strict=True)
    }

    assert states == {"None", "Posted", "Disputed", "Final", "Rejected"}
    assert outcomes == {(kind, ok) for kind in KINDS for ok in (True, False)} - {("tick", True)}
