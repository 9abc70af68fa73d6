"""What all wrappers share: an address, an ABI, reads at a pinned block, events, encoded calls."""

from collections.abc import Mapping
from typing import Any, ClassVar

from eth_utils.abi import event_abi_to_log_topic
from hexbytes import HexBytes
from web3._utils.events import get_event_data

from contracts.chain.artifacts import artifact
from contracts.chain.blocks import Block, Log
from contracts.chain.connection import Call, ChainConnection, checksummed
from contracts.terms.errors import RpcFailed
from contracts.terms.ids import Address, Digest


class Contract:
    """A deployed contract. Subclasses name the artifact, and its role in a deployment."""

    name: ClassVar[str]
    role: ClassVar[str]

    def __init__(self, chain: ChainConnection, address: Address) -> None:
        self.chain, self.address = chain, address
        self._contract = chain.web3.eth.contract(
            address=checksummed(address), abi=artifact(self.name).abi
        )
        self._events = {
            HexBytes(event_abi_to_log_topic(entry)): entry  # type: ignore[arg-type]
            for entry in artifact(self.name).abi
            if entry["type"] == "event"
        }

    async def _read(self, at: Block, function: str, *arguments: Any) -> Any:
        return await self.chain.call(self._contract.functions[function](*arguments), at)

    def _encode(self, function: str, *arguments: Any) -> Call:
        data = self._contract.encode_abi(function, args=list(arguments))
        return Call(self.address, bytes(HexBytes(data)))

    async def events(self, from_block: int, to_block: int) -> list[Log]:
        """All events of this contract in a range of blocks, both ends included, in order."""
        raw = await self._logs(from_block, to_block)
        return [log for entry in raw if (log := self._decoded(entry)) is not None]

    async def _logs(self, from_block: int, to_block: int) -> list[dict[str, Any]]:
        """In as many requests as it takes: nodes bound their answers, and anybody makes events."""
        wanted = {
            "address": checksummed(self.address),
            "fromBlock": hex(from_block),
            "toBlock": hex(to_block),
        }
        try:
            return list(await self.chain.request("eth_getLogs", [wanted]))
        except RpcFailed:
            if from_block >= to_block:
                raise
        middle = (from_block + to_block) // 2
        return await self._logs(from_block, middle) + await self._logs(middle + 1, to_block)

    def _decoded(self, entry: dict[str, Any]) -> Log | None:
        topics = [HexBytes(topic) for topic in entry["topics"]]
        abi = self._events.get(topics[0]) if topics else None
        if abi is None:
            return None
        receipt = {
            **entry,
            "topics": topics,
            "data": HexBytes(entry["data"]),
            "blockNumber": int(entry["blockNumber"], 16),
            "logIndex": int(entry["logIndex"], 16),
            "transactionIndex": int(entry["transactionIndex"], 16),
            "blockHash": HexBytes(entry["blockHash"]),
            "transactionHash": HexBytes(entry["transactionHash"]),
        }
        decoded = get_event_data(
            self.chain.web3.codec,
            abi,
            receipt,
        )
        return Log(
            contract=self.role,
            event=decoded["event"],
            args={name: _plain(value) for name, value in decoded["args"].items()},
            block=receipt["blockNumber"],
            block_hash=Digest(bytes(receipt["blockHash"])),
            transaction=Digest(bytes(receipt["transactionHash"])),
            log_index=receipt["logIndex"],
        )


def _plain(value: Any) -> Any:
    """Bytes for bytes and for addresses, as our types are; also of what a struct holds."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str) and value.startswith("0x") and len(value) == 42:
        return bytes.fromhex(value[2:])
    return value
