"""Which values must Python and Solidity agree on? Writes `contracts/vectors.json`.

`python -m tests.contracts.make_vectors` computes every value with `contracts.terms` and
`contracts.governance`; `contracts/solidity/test/Vectors.t.sol` and `test_vectors.py` check them
with implementations of their own. The inputs are fixed, so the file never changes by itself.
Bytes are 0x-prefixed hex, integers are decimal strings: both sides' JSON readers take these.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contracts.governance import lane
from contracts.governance.parameters import PARAMETERS
from contracts.keys.wallet import Wallet
from contracts.terms import merkle, typed_data
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, JobId
from contracts.terms.merkle import EMPTY_PAY, EMPTY_SUM, PayNode, Proof, SumNode
from contracts.terms.typed_data import Domain, TypedStruct
from tests.support.settlement_window import (
    DebitsRejected,
    EpochState,
    Event,
    Proposed,
    RejectionAnnounced,
    Terms,
    Ticked,
    Window,
    advance,
)

VECTORS = Path(__file__).parents[2] / "contracts" / "vectors.json"
DOMAIN = Domain(31337, Address(bytes.fromhex("00000000000000000000000000000000005e771e")))
SIGNER = Wallet(keccak(b"vectors: signer"))

_UINT96 = 2**96 - 1
_UINT64 = 2**64 - 1

EventKind = Callable[[EpochNumber, int], Event]
KINDS: dict[str, EventKind] = {
    "propose": Proposed,
    "announce": RejectionAnnounced,
    "reject": DebitsRejected,
    "tick": lambda _, at: Ticked(at),
}


def build() -> dict[str, Any]:
    """All vectors, ready for JSON."""
    return {
        "domain": {
            "chainId": str(DOMAIN.chain_id),
            "settlement": _hex(DOMAIN.settlement),
            "separator": _hex(DOMAIN.separator),
        },
        "messages": [_message(struct, values) for struct, values in _messages()],
        "jobs": [_job(number) for number in range(3)],
        "settlementTrees": [_settlement_tree(size) for size in (0, 1, 2, 3, 5, 8, 13)],
        "jobsTrees": [_jobs_tree(size) for size in (1, 2, 3, 6)],
        "payTrees": [_pay_tree(size) for size in (0, 1, 2, 3, 7, 8)],
        "batches": [_batch(size) for size in (1, 2, 3, 5, 9)],
        "lanes": [_lane(seed) for seed in range(3)],
        "windows": [_window(seed) for seed in range(40)],
        "parameters": {
            "names": [each.name for each in PARAMETERS],
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


def _abi(values: Sequence[bytes | int]) -> bytes:
    """ABI encoding of static values: a word each."""
    return b"".join(
        each.rjust(32, b"\0") if isinstance(each, bytes) else each.to_bytes(32, "big")
        for each in values
    )


def _messages() -> list[tuple[TypedStruct, tuple[bytes | int, ...]]]:
    poster, coordinator = _account("poster"), SIGNER.account
    words = [_word(f"word {number}") for number in range(6)]
    return [
        (typed_data.JOB_SPEC, (poster, coordinator, words[0], 10**9, 10**8, 1_800_000_000, 7)),
        (
            typed_data.JOB_SPEC,
            (poster, coordinator, words[1], _UINT96, _UINT96, _UINT64, 2**256 - 1),
        ),
        (typed_data.JOB_OPENING, (words[0], words[1], _account("anchorer"), 123, words[2])),
        (typed_data.OFFER, (poster, words[1], 1_000_000_000, 1_800_000_000, words[3])),
        (typed_data.LEASE_ACCEPT, (words[0], SIGNER.account, words[1], 10**9, 5 * 10**6, words[3])),
        (typed_data.SEAL, (words[0], 1, words[1], words[2], 0, ZERO_DIGEST, 0, 0, False)),
        (
            typed_data.SEAL,
            (words[0], _UINT64, words[1], words[2], _UINT64, words[4], _UINT96, _UINT96, True),
        ),
    ]


def _message(struct: TypedStruct, values: tuple[bytes | int, ...]) -> dict[str, Any]:
    digest = DOMAIN.signing_digest(struct.hash(values))
    return {
        "name": struct.name,
        "typeString": struct.type_string,
        "typeHash": _hex(struct.type_hash),
        "encoded": _hex(_abi(values)),
        "structHash": _hex(struct.hash(values)),
        "digest": _hex(digest),
        "signature": _hex(SIGNER.sign_digest(digest)),
        "signer": _hex(SIGNER.account),
    }


def _job(number: int) -> dict[str, str]:
    poster, coordinator = _account(f"poster {number}"), _account(f"coordinator {number}")
    spec_hash, epoch_cap = _word(f"spec {number}"), 10**number
    deadline, nonce = 1_800_000_000 + number, 2 ** (85 * number)
    job = typed_data.job_id(
        poster=poster,
        coordinator=coordinator,
        spec_hash=spec_hash,
        epoch_cap=epoch_cap,
        deadline=deadline,
        nonce=nonce,
    )
    header = (poster, coordinator, spec_hash, epoch_cap, deadline, nonce)
    return {"encoded": _hex(_abi(header)), "id": _hex(job)}


def _paths(proofs: Sequence[Proof[Any]], encode: Callable[[Any], bytes]) -> dict[str, list[str]]:
    return {
        "sides": [
            str(sum(is_left << level for level, (_, is_left) in enumerate(proof.siblings)))
            for proof in proofs
        ],
        "paths": [
            _hex(b"".join(encode(sibling) for sibling, _ in proof.siblings)) for proof in proofs
        ],
    }


def _sum_sibling(node: SumNode) -> bytes:
    return node.hash + node.sum.to_bytes(12, "big")


def _pay_sibling(node: PayNode) -> bytes:
    return node.hash + node.earned.to_bytes(12, "big") + node.vested.to_bytes(12, "big")


def _sum_tree(leaves: Sequence[SumNode]) -> dict[str, Any]:
    top = merkle.root(leaves, merkle.sum_node, EMPTY_SUM)
    proofs = [merkle.prove(leaves, index, merkle.sum_node) for index in range(len(leaves))]
    return {"root": _hex(top.hash), "sum": str(top.sum), **_paths(proofs, _sum_sibling)}


def _settlement_tree(size: int) -> dict[str, Any]:
    accounts = sorted(_account(f"account {number}") for number in range(size))
    roots = [_word(f"jobs of {number}") for number in range(size)]
    sums = [BaseUnits(10**number + number) for number in range(size)]
    leaves = [merkle.settlement_leaf(*each) for each in zip(accounts, roots, sums, strict=True)]
    return {
        "accounts": [_hex(each) for each in accounts],
        "jobsRoots": [_hex(each) for each in roots],
        "cumulatives": [str(each) for each in sums],
        **_sum_tree(leaves),
    }


def _jobs_tree(size: int) -> dict[str, Any]:
    jobs = sorted(JobId(_word(f"job {number}")) for number in range(size))
    sums = [BaseUnits(3 * 10**number) for number in range(size)]
    leaves = [merkle.job_leaf(job, amount) for job, amount in zip(jobs, sums, strict=True)]
    return {
        "jobs": [_hex(each) for each in jobs],
        "cumulatives": [str(each) for each in sums],
        **_sum_tree(leaves),
    }


def _pay_tree(size: int) -> dict[str, Any]:
    accounts = sorted(_account(f"account {number}") for number in range(size))
    if size > 2:
        accounts = [merkle.FROZEN, merkle.FORFEITED, *accounts[2:]]
    earned = [BaseUnits(10**number + 1) for number in range(size)]
    vested = [BaseUnits(amount // 2) for amount in earned]
    leaves = [merkle.pay_leaf(*each) for each in zip(accounts, earned, vested, strict=True)]
    top = merkle.root(leaves, merkle.pay_node, EMPTY_PAY)
    proofs = [merkle.prove(leaves, index, merkle.pay_node) for index in range(size)]
    return {
        "accounts": [_hex(each) for each in accounts],
        "earned": [str(each) for each in earned],
        "vested": [str(each) for each in vested],
        "root": _hex(top.hash),
        "earnedSum": str(top.earned),
        "vestedSum": str(top.vested),
        **_paths(proofs, _pay_sibling),
    }


def _batch(size: int) -> dict[str, Any]:
    jobs = sorted(JobId(_word(f"job {number}")) for number in range(size))
    entries = [(job, 5 * step + 1, _word(f"seal {step}")) for step, job in enumerate(jobs)]
    leaves = [merkle.batch_leaf(*entry) for entry in entries]
    proofs = [merkle.prove(leaves, index, merkle.plain_node) for index in range(size)]
    return {
        "jobs": [_hex(job) for job, _, _ in entries],
        "steps": [str(step) for _, step, _ in entries],
        "seals": [_hex(seal) for _, _, seal in entries],
        "root": _hex(merkle.batch_root(entries)),
        **_paths(proofs, lambda node: bytes(node)),
    }


def _lane(seed: int) -> dict[str, Any]:
    """Anchors with a gap between them; the coin of each is recorded before the next."""
    state, block = ZERO_DIGEST, 1000
    rows: dict[str, list[str]] = {
        key: [] for key in ("roots", "blocks", "coins", "anchored", "recorded")
    }
    for number in range(4):
        block += (number + 1) * (seed + 1) + (8192 if (seed, number) == (2, 2) else 0)
        root, coin = _word(f"batch {seed} {number}"), _word(f"block {block}")
        state = lane.anchored(state, root, block)
        rows["roots"].append(_hex(root))
        rows["blocks"].append(str(block))
        rows["anchored"].append(_hex(state))
        if (seed, number) == (2, 1):  # the next block of this lane comes too late for a coin
            coin = ZERO_DIGEST
        state = lane.recorded(state, coin)
        rows["coins"].append(_hex(coin))
        rows["recorded"].append(_hex(state))
    return rows


TERMS = (
    Terms(challenge_window=5, announcement_window=5, execution_window=20, min_epoch_length=2),
    Terms(challenge_window=7, announcement_window=3, execution_window=10, min_epoch_length=9),
)

LIKELY = {
    EpochState.NONE: ("propose",),
    EpochState.POSTED: ("announce", "announce", "announce", "propose"),
    EpochState.DISPUTED: ("reject", "reject", "reject"),
    EpochState.FINAL: ("propose", "propose"),
    EpochState.REJECTED: ("propose", "propose"),
}
"""Events that fit a state are drawn more often, so that histories get somewhere."""


def _window(seed: int) -> dict[str, Any]:
    """One random history that keeps near the edges of its windows."""
    draw = random.Random(seed)
    terms = TERMS[seed % len(TERMS)]
    window, at = Window(), 100
    rows: dict[str, list[Any]] = {
        key: [] for key in ("events", "epochs", "at", "accepted", "numbers", "states")
    }
    for _ in range(14):
        number = window.epoch or 0
        edges = [
            end for end in (window.ends_at, window.executable_until, window.next_at) if end > at
        ]
        steps = [at + 1, *(end + offset for end in edges for offset in (-1, 0, 1))]
        at = max(at, draw.choice(steps))
        kind = draw.choice((*LIKELY[window.state], "propose", "announce", "reject", "tick"))
        if kind == "propose":
            number += draw.choice((1, 1, 1, 1, 2, 0))
        event = KINDS[kind](EpochNumber(number), at)
        time_passed, _ = advance(window, Ticked(at), terms)
        window, _ = advance(window, event, terms)
        rows["events"].append(kind)
        rows["epochs"].append(str(number))
        rows["at"].append(str(at))
        rows["accepted"].append(window != time_passed)
        rows["numbers"].append(str(window.epoch or 0))
        rows["states"].append(window.state.value)
    return {
        "challengeWindow": str(terms.challenge_window),
        "announcementWindow": str(terms.announcement_window),
        "executionWindow": str(terms.execution_window),
        "minEpochLength": str(terms.min_epoch_length),
        **rows,
    }


def render() -> str:
    """The file's text."""
    return json.dumps(build(), indent=1) + "\n"


if __name__ == "__main__":
    VECTORS.write_text(render(), encoding="ascii")
