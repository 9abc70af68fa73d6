"""How we write to the chain: once per intention, one nonce sequence per account.

A transaction is estimated first, so that a refusal costs nothing, stored before it is broadcast,
and sent again when the chain forgot it (an anvil that was killed loses its last second, a public
chain reorganises). One that waits while fees rise is replaced by another attempt of the same nonce
(`fees`), which is stored before it is broadcast too: whichever attempt the chain runs is the
intention, and no two of a nonce can run. Above the cap nothing is signed, so that no nonce is taken
by what cannot be mined.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes
from web3.types import TxReceipt

from contracts.chain.connection import Call, ChainConnection, Receipt, checksummed
from contracts.chain.fees import CAP, Fees, first_fees, is_outbid, replacement
from contracts.chain.transactions import StoredTransaction, TransactionStore
from contracts.keys.wallet import Wallet
from contracts.terms.errors import ContractRefused, DeadlineExceeded, RpcFailed, Unavailable
from contracts.terms.ids import Address, Digest

_POLL_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5)  # until a receipt is there; the last one repeats
_POLLS_A_LOOK = 10  # between two looks at fees
MOST_GAS = 2**24
"""Of one transaction (EIP-7825)."""
_LATE_BLOCKS = 10
"""Blocks that the first transaction in line may wait before it is priced again anyhow."""
_IS_THERE = ("already", "nonce too low", "known")
_TOO_CHEAP = ("underpriced", "less than block base fee", "fee too low", "feetoolow")
log = logging.getLogger(__name__)

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
        *,
        max_fee: int = CAP,
        patience_seconds: float = 90.0,
    ) -> None:
        """Write as `wallet`.

        Args:
            chain: Where to.
            wallet: Of the account.
            store: Where transactions are kept.
            chain_id: EIP-155.
            watch: Told what happened.
            max_fee: Most that a unit of gas may cost, in wei.
            patience_seconds: How long `send` waits for the chain; the next ones wait no more until
                the account's first transaction in line was run.
        """
        self._chain, self._store, self._chain_id, self._watch = chain, store, chain_id, watch
        self._max_fee, self._patience = max_fee, patience_seconds
        self._signer: LocalAccount = Account.from_key(wallet.secret)
        self.account = wallet.account
        self._lock = asyncio.Lock()
        self._stuck: int | None = None  # the nonce that was waited for in vain
        self._seen: tuple[Digest, int] | None = None  # the first in line, and since which block

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
            Unavailable: the account cannot pay for its gas, or gas costs more than the cap.
            WrongConfiguration: the node is of another chain than what is stored.
            DeadlineExceeded, ChainUnreachable, RpcFailed: it may or may not have happened; the same
                key may be tried again.
        """
        return await self._once(key, call.to if call else to, call.data if call else b"", value)

    async def deploy(self, key: str, creation: bytes) -> Receipt:
        """Create a contract, once per `key`; raises as `send`."""
        return await self._once(key, None, creation, 0)

    async def _once(self, key: str, to: Address | None, data: bytes, value: int) -> Receipt:
        async with self._lock:
            stored = await self._store.find(self.account, key)
            if stored is None:
                stored = await self._sign(key, to, data, value)
            return await self._finish(stored)

    async def has_code(self, address: Address) -> bool:
        """Whether there is a contract at `address` now."""
        code = await self._chain.request("eth_getCode", [checksummed(address), "latest"])
        return str(code) not in ("", "0x")

    async def resend(self) -> int:
        """Broadcast again what the chain did not run, priced again; returns how many there are."""
        async with self._lock:
            return await self._resend()

    async def _resend(self) -> int:
        known = await self._chain.nonce(self.account)
        waiting = _newest(await self._store.since(self.account, known))
        if not waiting:
            return 0
        await self._store.need_chain(self._chain)
        block, base_fee = await self._chain.base_fee()
        late = self._is_late(waiting[0], block)
        for transaction in waiting:
            is_late = late and transaction is waiting[0]
            await self._broadcast(await self._priced(transaction, base_fee, is_late=is_late))
        return len(waiting)

    def _is_late(self, first: StoredTransaction, block: int) -> bool:
        """Whether the first one in line was seen waiting for long enough, as it is priced."""
        if self._seen is None or self._seen[0] != first.hash:
            self._seen = (first.hash, block)
        return block - self._seen[1] >= _LATE_BLOCKS

    async def _priced(
        self, transaction: StoredTransaction, base_fee: int, *, is_late: bool
    ) -> StoredTransaction:
        """The transaction, or what replaces it, stored."""
        fields = TypedTransaction.from_bytes(HexBytes(transaction.raw)).as_dict()
        old = Fees(fields["maxFeePerGas"], fields["maxPriorityFeePerGas"])
        if not is_late and not is_outbid(old, base_fee):
            return transaction
        fees = replacement(old, base_fee, self._max_fee)
        if fees is None:
            log.warning("%s waits until fees fall: %s wei a gas", transaction.key, base_fee)
            return transaction
        try:
            await self._need_balance(transaction.key, fields["value"], fields["gas"], fees)
        except Unavailable as error:
            log.warning("%s waits: %s", transaction.key, error.message)
            return transaction
        params = {name: fields[name] for name in ("chainId", "nonce", "data", "value", "gas")}
        if fields["to"]:
            params["to"] = checksummed(Address(bytes(fields["to"])))
        return await self._stored(transaction.key, params, fees, transaction.attempt + 1)

    async def _sign(
        self, key: str, to: Address | None, data: bytes, value: int
    ) -> StoredTransaction:
        await self._store.need_chain(self._chain)
        await self._resend()
        nonce = max(
            await self._store.next_nonce(self.account), await self._chain.nonce(self.account)
        )
        _, base_fee = await self._chain.base_fee()
        fees = first_fees(base_fee, self._max_fee)
        if fees is None:
            raise Unavailable(
                f"{key}: gas costs {base_fee} wei, and at most {self._max_fee} is offered; it "
                "is sent when fees fall"
            )
        gas = await self._estimate(to, data, value)
        await self._need_balance(key, value, gas, fees)
        params = {"chainId": self._chain_id, "nonce": nonce, "data": HexBytes(data)}
        params |= {"value": value, "gas": gas}
        if to is not None:
            params["to"] = checksummed(to)
        return await self._stored(key, params, fees, 0)

    async def _need_balance(self, key: str, value: int, gas: int, fees: Fees) -> None:
        """A node refuses what the account cannot pay, and that would block the nonces behind it."""
        wanted, held = value + gas * fees.maximum, await self._chain.balance(self.account)
        if wanted > held:
            raise Unavailable(
                f"{key}: needs {wanted} wei, {checksummed(self.account)} holds {held}; "
                "send the account coin of this chain for gas"
            )

    async def _stored(
        self, key: str, params: dict[str, Any], fees: Fees, attempt: int
    ) -> StoredTransaction:
        priced = params | {"maxFeePerGas": fees.maximum, "maxPriorityFeePerGas": fees.tip}
        signed = self._signer.sign_transaction(priced)
        stored = StoredTransaction(
            self.account,
            params["nonce"],
            key,
            Digest(bytes(signed.hash)),
            bytes(signed.raw_transaction),
            attempt,
        )
        await self._store.add(stored)
        self._watch("stored", key)
        return stored

    async def _estimate(self, to: Address | None, data: bytes, value: int) -> int:
        call = {"from": checksummed(self.account), "data": "0x" + data.hex(), "value": hex(value)}
        if to is not None:
            call["to"] = checksummed(to)
        gas = int(await self._chain.request("eth_estimateGas", [call]), 16)
        # Storage may be colder when it runs. Some nodes answer what a call costs after refunds,
        # a fifth of it at most (EIP-3529), and each inner call leaves out a 64th (EIP-150).
        return max(gas, min(gas + gas // 2, MOST_GAS))

    async def _broadcast(self, transaction: StoredTransaction) -> None:
        try:
            await self._chain.request("eth_sendRawTransaction", ["0x" + transaction.raw.hex()])
        except RpcFailed as error:
            text = str(error).lower()
            if not any(known in text for known in (*_IS_THERE, *_TOO_CHEAP)):
                raise

    async def _finish(self, stored: StoredTransaction) -> Receipt:
        await self._resend()
        self._watch("broadcast", stored.key)
        ends, polls = time.monotonic() + await self._waits(), 0
        while True:
            for attempt in await self._store.attempts(self.account, stored.nonce):
                if (receipt := await self._chain.receipt(attempt.hash)) is not None:
                    return await self._judge(attempt, receipt)
            if time.monotonic() >= ends:
                break
            polls += 1
            if polls % _POLLS_A_LOOK == 0:
                await self._resend()
            await asyncio.sleep(_POLL_SECONDS[min(polls, len(_POLL_SECONDS)) - 1])
        self._stuck = stored.nonce
        raise DeadlineExceeded(f"{stored.key}: transaction 0x{stored.hash.hex()} is not mined")

    async def _waits(self) -> float:
        """Seconds; none while what was waited for in vain still waits."""
        if self._stuck is not None and await self._chain.nonce(self.account) > self._stuck:
            self._stuck = None
        return self._patience if self._stuck is None else 0.0

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


def _newest(transactions: Sequence[StoredTransaction]) -> list[StoredTransaction]:
    """The newest attempt of each nonce, in order of nonces."""
    return list({each.nonce: each for each in transactions}.values())
