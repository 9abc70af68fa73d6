"""Do Python's own values hold against a second implementation, and is the file the one written?

`contracts/vectors.json` is what forge checks against the contracts (`test/Vectors.t.sol`). Here
eth_account hashes and recovers the typed data.
"""

import json
from typing import Any

import pytest
from eth_abi.abi import decode as abi_decode
from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.governance import anchor_chain
from contracts.terms.digest import keccak
from contracts.terms.ids import Digest
from tests.contracts.make_vectors import VECTORS, render

FOUND: dict[str, Any] = json.loads(VECTORS.read_text(encoding="ascii"))
DOMAIN_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def test_vectors__file__is_what_the_generator_writes() -> None:
    assert VECTORS.read_text(encoding="ascii") == render()


@pytest.mark.parametrize("row", FOUND["history"] + FOUND["messages"], ids=lambda row: row["name"])
def test_vectors__typed_data__equals_eth_account(row: dict[str, Any]) -> None:
    fields = [each.split() for each in row["typeString"].split("(")[1][:-1].split(",")]
    values = abi_decode([kind for kind, _ in fields], _bytes(row["encoded"]))
    signable = encode_typed_data(
        full_message={
            "types": {
                "EIP712Domain": DOMAIN_FIELDS,
                row["name"]: [{"name": name, "type": kind} for kind, name in fields],
            },
            "primaryType": row["name"],
            "domain": {
                "name": "Tallystick",
                "version": "2",
                "chainId": int(FOUND["domain"]["chainId"]),
                "verifyingContract": FOUND["domain"]["escrow"],
            },
            "message": {
                name: list(value) if isinstance(value, tuple) else value
                for (_, name), value in zip(fields, values, strict=True)
            },
        }
    )

    digest = keccak(b"\x19" + signable.version + signable.header + signable.body)
    signer = Account.recover_message(signable, signature=_bytes(row["signature"]))

    assert signable.header == _bytes(FOUND["domain"]["separator"])
    assert signable.body == _bytes(row["structHash"])
    assert digest == _bytes(row["digest"])
    assert _bytes(signer) == _bytes(row["signer"])


@pytest.mark.parametrize("row", FOUND["anchor_chains"], ids=lambda row: row["blocks"][0])
def test_vectors__anchor_chain__folds_batch_by_batch(row: dict[str, Any]) -> None:
    batches = [
        anchor_chain.AnchoredBatch(Digest(_bytes(root)), int(block), Digest(_bytes(beacon)))
        for root, block, beacon in zip(row["roots"], row["blocks"], row["beacons"], strict=True)
    ]

    for number, recorded in enumerate(row["recorded"], start=1):
        assert anchor_chain.fold_anchor_chain(batches[:number]) == _bytes(recorded)
