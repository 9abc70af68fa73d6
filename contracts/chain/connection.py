"""How we read the chain: at one pinned block, with errors of ours.

Reads take a `Block`, so that what is read together belongs together; a block that the chain no
longer knows raises `ChainForgot`, which means: pin the head again. Writes are in `sender`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import hexdigits
from typing import Any, cast

from eth_typing import ChecksumAddress
from hexbytes import HexBytes
from web3 import AsyncWeb3
from web3.exceptions import (
    BadFunctionCallOutput,
    BadResponseFormat,
    BlockNotFound,
    ContractCustomError,
    ContractLogicError,
    TransactionNotFound,
    Web3RPCError,
)
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse, TxReceipt

from contracts.chain.artifacts import explain
from contracts.chain.blocks import Block
from contracts.http_clients import server_of
from contracts.json_rpc import JsonRpc, first_block_hash
from contracts.terms import errors
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixSeconds

_RAN = ("revert", "evm error", "out of gas", "gas required exceeds", "invalid opcode")
"""In the message of an error without revert data: code was run, and the same call fails again."""


_RECEIPT = {"status", "blockNumber", "blockHash", "gasUsed"}


@dataclass(frozen=True)
class Call:
    """A call of a contract, encoded."""

    to: Address
    data: bytes


@dataclass(frozen=True)
class Receipt:
    """A transaction that the chain ran successfully."""

    transaction: Digest
    block: int
    block_hash: Digest
    gas_used: int


def checksummed(address: Address) -> ChecksumAddress:
    """`address` as web3 wants it."""
    return AsyncWeb3.to_checksum_address(address)


class _Provider(AsyncJSONBaseProvider):
    """web3 over our own client, which knows of proxies."""

    def __init__(self, rpc: JsonRpc) -> None:
        super().__init__()
        self._rpc = rpc

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """See `AsyncBaseProvider`; raises ChainUnreachable."""
        answer = await self._rpc.post(self.encode_rpc_request(method, params))
        if "error" not in answer and not _fits(method, answer.get("result")):
            raise _no_json_rpc(self._rpc.url)
        return cast(RPCResponse, answer)


class ChainConnection:
    """A JSON-RPC endpoint. `async with` closes its connections."""

    def __init__(self, url: str, *, timeout_seconds: float = 10.0) -> None:
        self._rpc = JsonRpc(url, timeout_seconds=timeout_seconds)
        self._provider = _Provider(self._rpc)
        self.web3 = AsyncWeb3(self._provider)
        # It would ask for the chain's id before each call, to compare a field that we never set.
        self.web3.middleware_onion.remove("validation")
        self.url = url

    async def __aenter__(self) -> "ChainConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._rpc.close()

    async def chain_id(self) -> int:
        """EIP-155 chain id."""
        return await self._number("eth_chainId", [])

    async def need_chain(self, wanted: int, genesis: Digest | None = None) -> None:
        """Refuse a node of another chain: what it says of our contracts would mean nothing.

        Args:
            wanted: EIP-155 chain id, which many local chains share.
            genesis: Hash of the chain's first block, if it is known.

        Raises:
            WrongConfiguration: with what it speaks for.
        """
        found = await self.chain_id()
        if found != wanted:
            raise errors.WrongConfiguration(
                f"{server_of(self.url)} is a node of chain {found}, the contracts are on chain "
                f"{wanted}: name a node of that chain (TALLYSTICK_RPC_URL)",
                found=found,
                wanted=wanted,
            )
        if genesis is not None and (first := await self.genesis()) != genesis:
            raise errors.WrongConfiguration(
                f"{server_of(self.url)} is a node of another chain {found}: its first block is "
                f"0x{first.hex()[:12]}, the contracts are on that of 0x{genesis.hex()[:12]}",
                found=first.hex(),
                wanted=genesis.hex(),
            )

    async def genesis(self) -> Digest:
        """Hash of the first block: what tells a chain from all others of its id."""
        return Digest(await first_block_hash(self.request))

    async def head(self, *, confirmations: int = 0) -> Block:
        """The newest block with this many blocks on top (block 0 when there are fewer)."""
        newest = self._as_block(await self.request("eth_getBlockByNumber", ["latest", False]))
        return await self.block(max(0, newest.number - confirmations)) if confirmations else newest

    async def next_time(self) -> UnixSeconds:
        """When the next block would be; the head's time where the node does not say.

        A chain that makes blocks on demand stands still between them, and what waits for a moment
        would wait for ever.
        """
        head = (await self.head()).timestamp
        try:
            raw = await self.request("eth_getBlockByNumber", ["pending", False])
        except errors.RpcFailed:  # EthereumJS knows no pending block
            return head
        pending = int(raw["timestamp"], 16) if raw and raw.get("timestamp") else 0
        return UnixSeconds(max(head, pending))

    async def block(self, number: int) -> Block:
        """The block of this number.

        Raises:
            ChainForgot: the chain has no such block (any more).
        """
        raw = await self.request("eth_getBlockByNumber", [hex(number), False])
        if raw is None:
            raise errors.ChainForgot(f"block {number}", number=number)
        found = self._as_block(raw)
        return replace(found, hash=await self.genesis()) if number == 0 else found

    def _as_block(self, raw: Any) -> Block:
        try:
            return Block(
                int(raw["number"], 16),
                Digest(bytes(HexBytes(raw["hash"]))),
                UnixSeconds(int(raw["timestamp"], 16)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _no_json_rpc(self.url) from error

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """Raw JSON-RPC.

        Raises:
            ChainUnreachable: no answer, or none that is JSON-RPC.
            ChainForgot: the endpoint no longer knows the block that was asked for.
            ContractRefused: a contract was run and did not come to its end.
            RpcFailed: any other answer that is an error.
        """
        answer = await self._provider.make_request(RPCEndpoint(method), list(params))
        if "error" in answer:
            raise _rpc_error(method, answer["error"])
        return answer.get("result")

    async def _number(self, method: str, params: Sequence[object]) -> int:
        raw = await self.request(method, params)
        try:
            return int(raw, 16)
        except (ValueError, TypeError) as error:
            raise _no_json_rpc(self.url) from error

    async def call(self, function: Any, at: Block) -> Any:
        """Run a view `function` (of a web3 contract) as of block `at`.

        Raises:
            ChainForgot: the chain no longer knows `at`.
            ContractRefused: the contract reverted.
        """
        try:
            return await function.call(block_identifier=at.number)
        except (BadFunctionCallOutput, BadResponseFormat) as error:  # no such contract, or lies
            raise _no_json_rpc(self.url) from error
        except ContractCustomError as error:
            raise _refused(error.data if isinstance(error.data, str) else "") from error
        except ContractLogicError as error:
            raise errors.ContractRefused(str(error), error=str(error)) from error
        except (BlockNotFound, Web3RPCError) as error:
            raise errors.ChainForgot(f"block {at.number}: {error}", number=at.number) from error

    async def receipt(self, transaction: Digest) -> TxReceipt | None:
        """Receipt of a transaction that the chain ran, successfully or not; None if it has not."""
        try:
            return await self.web3.eth.get_transaction_receipt(HexBytes(transaction))
        except BadResponseFormat as error:
            raise _no_json_rpc(self.url) from error
        except TransactionNotFound:
            return None
        except Web3RPCError:
            return None

    async def nonce(self, account: Address) -> int:
        """Number of transactions of `account` that the chain ran."""
        params = [checksummed(account), "latest"]
        return await self._number("eth_getTransactionCount", params)

    async def base_fee(self) -> tuple[int, int]:
        """Number and base fee of the newest block, the latter in wei for a unit of gas."""
        raw = await self.request("eth_getBlockByNumber", ["latest", False])
        return int(raw.get("number", "0x0"), 16), int(raw["baseFeePerGas"], 16)

    async def balance(self, account: Address) -> int:
        """Native balance in wei."""
        return await self._number("eth_getBalance", [checksummed(account), "latest"])


def _fits(method: str, result: object) -> bool:
    """Whether web3 can read what a node answered; it breaks on what it did not expect."""
    match method:
        case "eth_call":
            digits = result[2:] if isinstance(result, str) and result.startswith("0x") else "?"
            return not digits.strip(hexdigits)
        case "eth_getTransactionReceipt":
            return result is None or (isinstance(result, Mapping) and result.keys() >= _RECEIPT)
    return True


def _no_json_rpc(url: str) -> errors.ChainUnreachable:
    return errors.ChainUnreachable(f"{server_of(url)} does not speak JSON-RPC")


def _rpc_error(method: str, error: object) -> Exception:
    details = error if isinstance(error, Mapping) else {"message": str(error)}
    message = str(details.get("message", ""))
    if "BlockOutOfRange" in message or "block not found" in message.lower():
        return errors.ChainForgot(f"{method}: {message}")
    data = details.get("data")
    if isinstance(data, str) and data.startswith("0x") and len(data) >= 10:
        return _refused(data)
    if any(sign in message.lower() for sign in _RAN):
        return errors.ContractRefused(f"{method}: {message}", error=message)
    return errors.RpcFailed(f"{method}: {message}")


def _refused(data: str) -> errors.ContractRefused:
    error = explain(bytes.fromhex(data[2:]))
    return errors.ContractRefused(error, error=error)
