"""How we read the chain, at one pinned block, and write to it, once per intention.

Reads take a `Block`, so that what is read together belongs together; a block that the chain no
longer knows raises `ChainForgot`, which means: pin the head again. Writes go through one
`Sender` per account (one nonce sequence): estimated first, so that a refusal costs nothing; stored
before broadcast; sent again when the chain forgot them (an anvil that was killed loses its last
second, a public chain reorganises).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_typing import ChecksumAddress
from hexbytes import HexBytes
from web3 import AsyncHTTPProvider, AsyncWeb3
from web3.exceptions import (
    BlockNotFound,
    ContractCustomError,
    ContractLogicError,
    TransactionNotFound,
    Web3RPCError,
)
from web3.types import RPCEndpoint, TxParams, TxReceipt

from contracts.chain.artifacts import error_names
from contracts.chain.transactions import StoredTransaction, TransactionStore
from contracts.keys.wallet import Wallet
from contracts.terms.errors import (
    ChainForgot,
    ChainUnreachable,
    ContractRefused,
    DeadlineExceeded,
    RpcFailed,
    Unavailable,
    WrongConfiguration,
)
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixSeconds

_UNREACHABLE = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)
_POLL_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5)  # until a receipt is there; the last one repeats
_TIP = 10**9  # wei a gas
_RAN = ("revert", "evm error", "out of gas", "gas required exceeds", "invalid opcode")
"""In the message of an error without revert data: code was run, and the same call fails again."""
_FEE_HEADROOM = 2  # base fees may double while a transaction waits


@dataclass(frozen=True)
class Block:
    """A block that reads are pinned to."""

    number: int
    hash: Digest
    timestamp: UnixSeconds


@dataclass(frozen=True)
class Call:
    """A call of a contract, encoded."""

    to: Address
    data: bytes


@dataclass(frozen=True)
class Log:
    """An event of one of our contracts, decoded."""

    address: Address
    event: str
    args: Mapping[str, Any]
    block: int
    block_hash: Digest
    transaction: Digest
    index: int


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


class ChainConnection:
    """A JSON-RPC endpoint. `async with` closes its HTTP session."""

    def __init__(self, url: str, *, timeout_seconds: float = 10.0) -> None:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        # Loopback clients ignore proxy variables: aiohttp does unless trust_env is set.
        self._provider = AsyncHTTPProvider(
            url,
            request_kwargs={"timeout": timeout},
            exception_retry_configuration=None,  # callers decide what is retried
        )
        self.web3 = AsyncWeb3(self._provider)
        self.url = url

    async def __aenter__(self) -> "ChainConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the HTTP session."""
        await self._provider.disconnect()

    async def chain_id(self) -> int:
        """EIP-155 chain id."""
        return await self._number("eth_chainId", [])

    async def need_chain(self, wanted: int) -> None:
        """Refuse a node of another chain: what it says of our contracts would mean nothing.

        Raises:
            WrongConfiguration: with what it speaks for.
        """
        found = await self.chain_id()
        if found != wanted:
            raise WrongConfiguration(
                f"{self.url} is a node of chain {found}, the contracts are on chain {wanted}: name "
                "a node of that chain (TALLYSTICK_RPC_URL)",
                found=found,
                wanted=wanted,
            )

    async def head(self, *, confirmations: int = 0) -> Block:
        """The newest block with this many blocks on top (block 0 when there are fewer)."""
        number = await self._number("eth_blockNumber", [])
        return await self.block(max(0, number - confirmations))

    async def next_time(self) -> UnixSeconds:
        """When the next block would be; the head's time where the node does not say.

        A chain that makes blocks on demand stands still between them, and what waits for a moment
        would wait for ever.
        """
        head = (await self.head()).timestamp
        raw = await self.request("eth_getBlockByNumber", ["pending", False])
        pending = int(raw["timestamp"], 16) if raw and raw.get("timestamp") else 0
        return UnixSeconds(max(head, pending))

    async def block(self, number: int) -> Block:
        """The block of this number.

        Raises:
            ChainForgot: the chain has no such block (any more).
        """
        raw = await self.request("eth_getBlockByNumber", [hex(number), False])
        if raw is None:
            raise ChainForgot(f"block {number}", number=number)
        return Block(
            int(raw["number"], 16),
            Digest(bytes(HexBytes(raw["hash"]))),
            UnixSeconds(int(raw["timestamp"], 16)),
        )

    async def check(self, block: Block) -> None:
        """Raises ChainForgot if the chain no longer knows `block`."""
        if (await self.block(block.number)).hash != block.hash:
            raise ChainForgot(f"block {block.number} was replaced", number=block.number)

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """Raw JSON-RPC.

        Raises:
            ChainUnreachable: no answer, or none that is JSON-RPC.
            ChainForgot: the endpoint no longer knows the block that was asked for.
            ContractRefused: a contract was run and did not come to its end.
            RpcFailed: any other answer that is an error.
        """
        try:
            answer = await self._provider.make_request(RPCEndpoint(method), list(params))
        except _UNREACHABLE as error:
            reason = str(error) or type(error).__name__
            raise ChainUnreachable(f"{method}: {self.url} does not answer ({reason})") from error
        except (ValueError, RecursionError) as error:
            raise _no_json_rpc(self.url) from error
        if not isinstance(answer, Mapping) or not {"result", "error"} & answer.keys():
            raise _no_json_rpc(self.url)
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
        except ContractCustomError as error:
            raise _refused(error) from error
        except ContractLogicError as error:
            raise ContractRefused(str(error), error=str(error)) from error
        except (BlockNotFound, Web3RPCError) as error:
            raise ChainForgot(f"block {at.number}: {error}", number=at.number) from error
        except _UNREACHABLE as error:
            raise ChainUnreachable(f"{self.url} does not answer ({error!r})") from error

    async def receipt(self, transaction: Digest) -> TxReceipt | None:
        """Receipt of a transaction that the chain ran, successfully or not; None if it has not."""
        try:
            return await self.web3.eth.get_transaction_receipt(HexBytes(transaction))
        except TransactionNotFound:
            return None
        except Web3RPCError:
            return None
        except _UNREACHABLE as error:
            raise ChainUnreachable(f"{self.url} does not answer ({error!r})") from error

    async def nonce(self, account: Address) -> int:
        """Number of transactions of `account` that the chain ran."""
        params = [checksummed(account), "latest"]
        return await self._number("eth_getTransactionCount", params)

    async def balance(self, account: Address) -> int:
        """Native balance in wei."""
        return await self._number("eth_getBalance", [checksummed(account), "latest"])


Watch = Callable[[str, str], None]
"""Told ("stored" | "broadcast" | "mined", key) after it happened; for logs and chaos tests."""


class Sender:
    """Writes of one account. Not concurrent over processes: one account, one nonce sequence."""

    def __init__(
        self,
        chain: ChainConnection,
        wallet: Wallet,
        store: TransactionStore,
        chain_id: int,
        watch: Watch = lambda phase, key: None,
    ) -> None:
        self._chain, self._store, self._chain_id, self._watch = chain, store, chain_id, watch
        self._signer: LocalAccount = Account.from_key(wallet.secret)
        self.account = wallet.account
        self._lock = asyncio.Lock()

    async def send(
        self, key: str, call: Call | None, *, value: int = 0, to: Address | None = None
    ) -> Receipt:
        """Make intention `key` happen once and wait until the chain ran it.

        Args:
            key: Names the intention; the same key later returns the same receipt.
            call: What to run; None sends `value` to `to`.
            value: Wei.
            to: Receiver when there is no call.

        Raises:
            ContractRefused: the chain would not run it, or ran it and it reverted. The same key
                may be tried again.
            Unavailable: the account cannot pay for its gas.
            ChainUnreachable, RpcFailed: it may or may not have happened; the same key may be tried
                again.
        """
        async with self._lock:
            stored = await self._store.find(self.account, key)
            if stored is None:
                target = call.to if call else to
                stored = await self._sign(key, target, call.data if call else b"", value)
            return await self._finish(stored)

    async def deploy(self, key: str, creation: bytes) -> Receipt:
        """Create a contract, once per `key`."""
        async with self._lock:
            stored = await self._store.find(self.account, key)
            if stored is None:
                stored = await self._sign(key, None, creation, 0)
            return await self._finish(stored)

    async def has_code(self, address: Address) -> bool:
        """Whether there is a contract at `address` now."""
        code = await self._chain.request("eth_getCode", [checksummed(address), "latest"])
        return str(code) not in ("", "0x")

    async def check(self, call: Call) -> None:
        """Ask whether the chain would run `call` now; nothing is sent.

        Raises:
            ContractRefused: it would not.
        """
        await self._estimate(call.to, call.data, 0)

    async def resend(self) -> int:
        """Broadcast again what the chain does not know; returns how many were sent."""
        known = await self._chain.nonce(self.account)
        waiting = await self._store.since(self.account, known)
        for transaction in waiting:
            await self._broadcast(transaction)
        return len(waiting)

    async def _sign(
        self, key: str, to: Address | None, data: bytes, value: int
    ) -> StoredTransaction:
        await self.resend()
        nonce = max(
            await self._store.next_nonce(self.account), await self._chain.nonce(self.account)
        )
        head = await self._chain.request("eth_getBlockByNumber", ["latest", False])
        max_fee = int(head["baseFeePerGas"], 16) * _FEE_HEADROOM + _TIP
        gas = await self._estimate(to, data, value)
        # A node refuses what the account cannot pay, and that would block the nonces behind it.
        if (wanted := value + gas * max_fee) > (held := await self._chain.balance(self.account)):
            raise Unavailable(
                f"{key}: needs {wanted} wei, {checksummed(self.account)} holds {held}; "
                "send the account coin of this chain for gas"
            )
        transaction: TxParams = {
            "chainId": self._chain_id,
            "nonce": nonce,  # type: ignore[typeddict-item]
            "data": HexBytes(data),
            "value": value,  # type: ignore[typeddict-item]
            "gas": gas,
            "maxFeePerGas": max_fee,  # type: ignore[typeddict-item]
            "maxPriorityFeePerGas": _TIP,  # type: ignore[typeddict-item]
        }
        if to is not None:
            transaction["to"] = checksummed(to)
        signed = self._signer.sign_transaction(transaction)  # type: ignore[arg-type]
        stored = StoredTransaction(
            self.account, nonce, key, Digest(bytes(signed.hash)), bytes(signed.raw_transaction)
        )
        await self._store.add(stored)
        self._watch("stored", key)
        return stored

    async def _estimate(self, to: Address | None, data: bytes, value: int) -> int:
        call = {"from": checksummed(self.account), "data": "0x" + data.hex(), "value": hex(value)}
        if to is not None:
            call["to"] = checksummed(to)
        gas = int(await self._chain.request("eth_estimateGas", [call]), 16)
        return gas + gas // 5  # storage may be colder when it runs

    async def _broadcast(self, transaction: StoredTransaction) -> None:
        try:
            await self._chain.request("eth_sendRawTransaction", ["0x" + transaction.raw.hex()])
        except RpcFailed as error:
            text = str(error).lower()
            if not any(known in text for known in ("already", "nonce too low", "known")):
                raise

    async def _finish(self, stored: StoredTransaction) -> Receipt:
        await self.resend()
        self._watch("broadcast", stored.key)
        for attempt in range(200):
            receipt = await self._chain.receipt(stored.hash)
            if receipt is not None:
                return await self._judge(stored, receipt)
            if attempt % 10 == 9:
                await self.resend()
            await asyncio.sleep(_POLL_SECONDS[min(attempt, len(_POLL_SECONDS) - 1)])
        raise DeadlineExceeded(f"{stored.key}: transaction 0x{stored.hash.hex()} is not mined")

    async def _judge(self, stored: StoredTransaction, receipt: TxReceipt) -> Receipt:
        if receipt["status"] != 1:
            await self._store.mark_failed(stored)
            raise ContractRefused(
                f"{stored.key}: reverted in block {receipt['blockNumber']} (a lost race)",
                transaction=stored.hash,
            )
        self._watch("mined", stored.key)
        return Receipt(
            stored.hash,
            int(receipt["blockNumber"]),
            Digest(bytes(receipt["blockHash"])),
            int(receipt["gasUsed"]),
        )


def _no_json_rpc(url: str) -> ChainUnreachable:
    return ChainUnreachable(f"{url} does not speak JSON-RPC")


def _rpc_error(method: str, error: object) -> Exception:
    details = error if isinstance(error, Mapping) else {"message": str(error)}
    message = str(details.get("message", ""))
    if "BlockOutOfRange" in message or "block not found" in message.lower():
        return ChainForgot(f"{method}: {message}")
    data = details.get("data")
    if isinstance(data, str) and data.startswith("0x") and len(data) >= 10:
        return ContractRefused(_explain(data), error=_explain(data))
    if any(sign in message.lower() for sign in _RAN):
        return ContractRefused(f"{method}: {message}", error=message)
    return RpcFailed(f"{method}: {message}")


def _refused(error: ContractCustomError) -> ContractRefused:
    data = error.data if isinstance(error.data, str) else ""
    return ContractRefused(_explain(data), error=_explain(data))


def _explain(data: str) -> str:
    """A contract's error as text, e.g. `WindowStillOpen(3, 1700000000)`."""
    raw = bytes.fromhex(data[2:])
    return error_names().explain(raw)
