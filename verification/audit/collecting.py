"""How the chain's part of an audit file is gathered from a node that answers `eth_getProof`.

Everything is read at one block by its number, and nothing that a node says is trusted: proofs are
checked before they are kept. A node proves its newest states only (anvil those since it was
started). Whoever calls brings the connection (`Rpc`); `contracts.json_rpc` is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from contracts.chain.layout import Place
from contracts.chain.proofs import EMPTY_NODE, Header
from contracts.governance.anchor_chain import AnchoredBatch
from contracts.terms.digest import keccak
from contracts.terms.errors import AuditMismatch, ChainForgot, Malformed, RpcFailed
from contracts.terms.ids import Address, Digest
from verification.audit.chain_proof import (
    SHIPPED_AS,
    ChainProof,
    ContractProof,
    Nodes,
    WantedPlaces,
    check_contracts,
    read_facts,
)

ANCHORED = keccak(b"Anchored(address,uint64,bytes32,bytes32)")
RECORDED = keccak(b"Recorded(address,uint64,uint64,bytes32)")

LOG_PAGE = 2_000
"""Blocks that one question for logs covers; EthereumJS answers at most 2,500."""

SLOT_PAGE = 500
"""Slots that one question for proofs covers; go-ethereum answers at most 1024."""

NO_SUCH_METHOD = (-32601, -32004)
"""JSON-RPC 2.0, and EIP-1474 for a method that a node knows and does not support."""


class Rpc(Protocol):
    """A JSON-RPC connection to an Ethereum node."""

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """The result of one call."""


async def take_proof(
    rpc: Rpc, *, block: int, addresses: Mapping[str, Address], places: WantedPlaces
) -> ChainProof:
    """What `block` proves about a job; a header alone where the node has no `eth_getProof`.

    Args:
        rpc: The node.
        block: Its number.
        addresses: Of the contracts, by the names of `chain_proof.SHIPPED_AS`.
        places: What is proved of each contract: `chain_proof.wanted_places`.

    Raises:
        ChainForgot: the node does not know the block (any more), or cannot prove its state.
        WrongBytes: the node's header does not hash to its own hash.
        Malformed: the node proves something else than it was asked for.
    """
    header = await read_header(rpc, block)
    try:
        contracts = {
            name: await _prove(rpc, addresses[name], wanted, block)
            for name, wanted in places.items()
        }
    except RpcFailed as error:
        if error.data.get("rpc_code") in NO_SUCH_METHOD:
            return ChainProof(header, None)
        raise ChainForgot(
            f"the node cannot prove block {block} ({error.message}): name a newer block, or a node "
            "that keeps old states",
            number=block,
        ) from error
    try:
        states = check_contracts(header, contracts, addresses, "proofs")
        read_facts(contracts, states, places, "proofs")
    except AuditMismatch as error:  # e.g. another block's state, after a reorganisation
        raise ChainForgot(
            f"the node does not prove block {block}: {error.message}", number=block
        ) from error
    return ChainProof(header, contracts)


async def read_header(rpc: Rpc, block: int) -> Header:
    """The header of a block.

    Raises:
        ChainForgot: there is no such block.
    """
    found = await rpc.request("eth_getBlockByNumber", [hex(block), False])
    if found is None:
        raise ChainForgot(f"there is no block {block}")
    return Header.from_rpc(found)


async def read_code(rpc: Rpc, addresses: Mapping[str, Address], block: int) -> dict[str, bytes]:
    """Code of the contracts in a block, by the names of `chain_proof.SHIPPED_AS`."""
    return {
        name: _bytes(await rpc.request("eth_getCode", [_text(addresses[name]), hex(block)]))
        for name in SHIPPED_AS
    }


async def read_anchor_chain(
    rpc: Rpc, seals: Address, anchorer: Address, *, first_block: int, last_block: int
) -> list[AnchoredBatch]:
    """All batches that `anchorer` anchored, in order, with the beacons known in `last_block`."""
    batches: list[AnchoredBatch] = []
    for start in range(first_block, last_block + 1, LOG_PAGE):
        for log in await _anchor_chain_logs(
            rpc, seals, anchorer, start, min(start + LOG_PAGE - 1, last_block)
        ):
            data = _bytes(log["data"])
            if _bytes(log["topics"][0]) == ANCHORED:
                block = int(log["blockNumber"], 16)
                batches.append(AnchoredBatch(Digest(data[:32]), block, None))
            else:
                if not batches:
                    raise Malformed("the node names a beacon of a batch that it does not name")
                newest = batches.pop()
                batches.append(AnchoredBatch(newest.root, newest.block, Digest(data[32:])))
    return batches


async def _anchor_chain_logs(
    rpc: Rpc, seals: Address, anchorer: Address, first_block: int, last_block: int
) -> list[dict[str, Any]]:
    """Logs of one page of blocks, both ends included, in order."""
    wanted = {
        "address": _text(seals),
        "fromBlock": hex(first_block),
        "toBlock": hex(last_block),
        "topics": [[_text(ANCHORED), _text(RECORDED)], _text(anchorer.rjust(32, b"\0"))],
    }
    return sorted(await rpc.request("eth_getLogs", [wanted]), key=_place_of)


async def _prove(
    rpc: Rpc, address: Address, wanted: Mapping[str, Place], block: int
) -> ContractProof:
    slots = [slot for place in wanted.values() for slot in place.slots]
    account, proofs = await _get_proof(rpc, address, slots, block)
    storage = {name: tuple(proofs[slot] for slot in place.slots) for name, place in wanted.items()}
    return ContractProof(account, storage)


async def _get_proof(
    rpc: Rpc, address: Address, slots: Sequence[int], block: int
) -> tuple[Nodes, dict[int, Nodes]]:
    """Nodes of the account, and of each slot."""
    account, proofs = await _get_proof_page(rpc, address, slots[:SLOT_PAGE], block)
    for start in range(SLOT_PAGE, len(slots), SLOT_PAGE):
        page = slots[start : start + SLOT_PAGE]
        proofs |= (await _get_proof_page(rpc, address, page, block))[1]
    return account, proofs


async def _get_proof_page(
    rpc: Rpc, address: Address, slots: Sequence[int], block: int
) -> tuple[Nodes, dict[int, Nodes]]:
    keys = [f"0x{slot:064x}" for slot in slots]
    answer = await rpc.request("eth_getProof", [_text(address), keys, hex(block)])
    found = {int(each["key"], 16): _nodes(each["proof"]) for each in answer["storageProof"]}
    if set(found) != set(slots):
        raise Malformed("the node proves other slots than it was asked for")
    return _nodes(answer["accountProof"]), found


def _place_of(log: Mapping[str, Any]) -> tuple[int, int]:
    return int(log["blockNumber"], 16), int(log["logIndex"], 16)


def _nodes(answer: Sequence[str]) -> Nodes:
    """Proof nodes; some nodes answer an empty trie with none, others with its one empty node."""
    return tuple(_bytes(node) for node in answer) or (EMPTY_NODE,)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _text(data: bytes) -> str:
    return f"0x{data.hex()}"
