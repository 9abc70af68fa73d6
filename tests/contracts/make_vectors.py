"""Which values must Python and Solidity agree on? Writes `contracts/vectors.json`.

`python -m tests.contracts.make_vectors` computes every value with `contracts.terms` and
`contracts.governance`; `contracts/solidity/test/Vectors.t.sol` and `test_vectors.py` check them
with implementations of their own. The messages of `history` are one job's life, in order: forge
hands them to the contract. The inputs are fixed, so the file never changes by itself.
Bytes are 0x-prefixed hex, integers are decimal strings: both sides' JSON readers take these.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eth_abi.abi import encode as abi_encode
from pydantic.alias_generators import to_pascal

from contracts.governance import anchor_chain
from contracts.governance.claims import Path as TreePath
from contracts.governance.claims import PayTree
from contracts.governance.parameters import PARAMETERS
from contracts.governance.pay import PayLeaf
from contracts.keys.wallet import Wallet
from contracts.terms import merkle, typed_data
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.typed_data import Domain, TypedStruct

VECTORS = Path(__file__).parents[2] / "contracts" / "vectors.json"
DOMAIN = Domain(31337, Address(bytes.fromhex("000000000000000000000000000000000000e5c7")))
POSTER, COORDINATOR, ACCOUNT = (
    Wallet(keccak(b"vectors: " + name)) for name in (b"poster", b"coordinator", b"account")
)

NOW = 1_800_000_000  # forge's clock while the messages arrive
BY = NOW + 60
_UINT80 = 2**80 - 1


def build() -> dict[str, Any]:
    """All vectors, ready for JSON."""
    tree = PayTree(_leaves(3))
    return {
        "domain": {
            "chainId": str(DOMAIN.chain_id),
            "escrow": _hex(DOMAIN.escrow),
            "separator": _hex(DOMAIN.separator),
        },
        "now": str(NOW),
        "headers": [_header(number) for number in range(3)],
        "history": [_message(*each) for each in _history(tree)],
        "messages": [_message(*each) for each in _between_parties()],
        "payTrees": [_pay_tree(PayTree(_leaves(size))) for size in (1, 2, 3, 7, 8)],
        "subtrees": [_subtrees(PayTree(_leaves(size))) for size in (1, 8, 257, 700)],
        "batches": [_batch(size) for size in (1, 2, 3, 5, 9)],
        "anchor_chains": [_anchor_chain(seed) for seed in range(3)],
        "parameters": {
            "names": [to_pascal(each.name) for each in PARAMETERS],
            "lowest": [str(each.lowest) for each in PARAMETERS],
            "highest": [str(each.highest) for each in PARAMETERS],
        },
    }


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _word(label: str) -> Digest:
    return keccak(b"vectors: " + label.encode())


def _account(label: str) -> Address:
    return Address(_word(label)[:20])


def _abi(struct: TypedStruct, values: Sequence[object]) -> str:
    return _hex(abi_encode([kind for kind, _ in struct.fields], values))


_HEADER = (POSTER.account, COORDINATOR.account, _word("spec"), 10**9, 10**8, 10**6, BY, 7)


def _header(number: int) -> dict[str, str]:
    largest = (_UINT80, _UINT80, _UINT80, 2**40 - 1, 2**256 - 1)
    parties = (_account(f"poster {number}"), _account(f"coordinator {number}"), _word("spec"))
    values = (_HEADER, (*parties, 0, 0, 1, 1, 0), (*parties, *largest))[number]
    struct = typed_data.JOB_HEADER
    return {"encoded": _abi(struct, values), "id": _hex(struct.hash(values))}


def _history(tree: PayTree) -> list[tuple[TypedStruct, tuple[object, ...], Wallet]]:
    job, account = typed_data.JOB_HEADER.hash(_HEADER), ACCOUNT.account
    limits = tuple(
        int.from_bytes(each, "big") << 96 | limit
        for each, limit in ((account, 10**6), (_account("other"), 2 * 10**6))
    )
    return [
        (typed_data.JOB_HEADER, _HEADER, POSTER),
        (typed_data.BOND, (job, account, 5 * 10**6, BY), ACCOUNT),
        (typed_data.GRANT, (job, limits, BY), COORDINATOR),
        (typed_data.SEAL, (job, tree.root, _word("details")), COORDINATOR),
        (typed_data.QUIT, (job, account, 999_999, BY), ACCOUNT),
        (typed_data.END, (job, (_account("other"), _account("third")), BY), COORDINATOR),
        (typed_data.CLOSE, (job, BY), POSTER),
        (typed_data.WITHDRAW, (account, 3 * 10**6, 10**5, 0, BY), ACCOUNT),
    ]


def _between_parties() -> list[tuple[TypedStruct, tuple[object, ...], Wallet]]:
    """What wallets sign and no contract reads."""
    words = [_word(f"word {number}") for number in range(4)]
    account = ACCOUNT.account
    lease = (words[0], account, words[1], 10**9, 5 * 10**6, words[3])
    return [
        (
            typed_data.JOB_OPENING,
            (words[0], words[1], _account("anchorer"), 123, words[2]),
            COORDINATOR,
        ),
        (typed_data.OFFER, (account, words[1], 1_000_000_000, BY, words[3]), ACCOUNT),
        (typed_data.LEASE_ACCEPT, lease, ACCOUNT),
    ]


def _message(struct: TypedStruct, values: tuple[object, ...], signer: Wallet) -> dict[str, str]:
    digest = DOMAIN.signing_digest(struct.hash(values))
    return {
        "name": struct.name,
        "typeString": struct.type_string,
        "typeHash": _hex(struct.type_hash),
        "encoded": _abi(struct, values),
        "structHash": _hex(struct.hash(values)),
        "digest": _hex(digest),
        "signature": _hex(signer.sign_digest(digest)),
        "signer": _hex(signer.account),
    }


def _leaves(size: int) -> tuple[PayLeaf, ...]:
    """Leaves of `size` accounts, that of `ACCOUNT` among them."""
    others = (_account(f"account {number}") for number in range(1, size))
    return tuple(
        PayLeaf(account, BaseUnits(1_000_001 + 10 ** (number % 24)), BaseUnits(600_000 + number))
        for number, account in enumerate(sorted((ACCOUNT.account, *others)))
    )


def _paths(paths: Sequence[TreePath]) -> dict[str, list[str]]:
    return {
        "sides": [str(path.sides) for path in paths],
        "paths": [_hex(b"".join(path.siblings)) for path in paths],
    }


def _pay_tree(tree: PayTree) -> dict[str, Any]:
    return {
        "accounts": [_hex(leaf.account) for leaf in tree.leaves],
        "earned": [str(leaf.earned) for leaf in tree.leaves],
        "vested": [str(leaf.vested) for leaf in tree.leaves],
        "root": _hex(tree.root),
        **_paths([tree.prove(leaf.account)[1] for leaf in tree.leaves]),
    }


def _subtrees(tree: PayTree) -> dict[str, Any]:
    """Up to 256 leaves each, packed."""
    found = tree.subtrees()
    return {
        "root": _hex(tree.root),
        "leaves": [_hex(each.packed()) for each in found],
        **_paths([each.path for each in found]),
    }


def _batch(size: int) -> dict[str, Any]:
    jobs = sorted(JobId(_word(f"job {number}")) for number in range(size))
    entries = [(job, 5 * step + 1, _word(f"seal {step}")) for step, job in enumerate(jobs)]
    leaves = [merkle.batch_leaf(*entry) for entry in entries]
    proofs = [merkle.prove(leaves, index) for index in range(size)]
    return {
        "jobs": [_hex(job) for job, _, _ in entries],
        "steps": [str(step) for _, step, _ in entries],
        "seals": [_hex(seal) for _, _, seal in entries],
        "root": _hex(merkle.batch_root(entries)),
        **_paths(
            [
                TreePath(
                    sum(is_left << level for level, (_, is_left) in enumerate(proof.siblings)),
                    tuple(sibling for sibling, _ in proof.siblings),
                )
                for proof in proofs
            ]
        ),
    }


def _anchor_chain(seed: int) -> dict[str, Any]:
    """Anchors with a gap between them; the beacon of each is recorded before the next."""
    state, block = ZERO_DIGEST, 1000
    rows: dict[str, list[str]] = {
        key: [] for key in ("roots", "blocks", "beacons", "anchored", "recorded")
    }
    for number in range(4):
        block += (number + 1) * (seed + 1) + (8192 if (seed, number) == (2, 2) else 0)
        root, beacon = _word(f"batch {seed} {number}"), _word(f"block {block}")
        state = anchor_chain.anchored(state, root, block)
        rows["roots"].append(_hex(root))
        rows["blocks"].append(str(block))
        rows["anchored"].append(_hex(state))
        if (seed, number) == (
            2,
            1,
        ):  # the next block of this anchor chain comes too late for a beacon
            beacon = ZERO_DIGEST
        state = anchor_chain.recorded(state, beacon)
        rows["beacons"].append(_hex(beacon))
        rows["recorded"].append(_hex(state))
    return rows


def render() -> str:
    """The file's text."""
    return json.dumps(build(), indent=1) + "\n"


if __name__ == "__main__":
    VECTORS.write_text(render(), encoding="ascii")
