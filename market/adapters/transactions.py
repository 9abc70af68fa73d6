"""Signed transactions in Postgres: `contracts.chain.transactions.TransactionStore` over rows.

Each call is a transaction of its own, so a raw transaction is durable before it is broadcast.
"""

from collections.abc import Callable
from dataclasses import replace

from contracts.chain.connection import ChainConnection
from contracts.chain.transactions import StoredTransaction, another_chain
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address
from market.service.ports import UnitOfWork
from market.service.rows import CursorRow, TransactionRow


class RowTransactions:
    """`TransactionStore` over units of work."""

    def __init__(self, new_work: Callable[[], UnitOfWork]) -> None:
        self._new_work = new_work

    async def need_chain(self, chain: ChainConnection) -> None:
        """See `TransactionStore.need_chain`; `sync_chain` notes the first block."""
        async with self._new_work() as work:
            first = await work[CursorRow].get(0)
        if first is not None and first.hash != await chain.genesis():
            raise another_chain("the market's database")

    async def find(self, account: Address, key: str) -> StoredTransaction | None:
        """See `TransactionStore.find`."""
        async with self._new_work() as work:
            rows = await work[TransactionRow].where(
                account=account, key=key, failed=False, order="-nonce", limit=1
            )
        return (await self.attempts(account, rows[0].nonce))[-1] if rows else None

    async def attempts(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """See `TransactionStore.attempts`."""
        async with self._new_work() as work:
            rows = await work[TransactionRow].where(account=account, nonce=nonce, order="attempt")
        return [_stored(row) for row in rows]

    async def since(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """See `TransactionStore.since`."""
        async with self._new_work() as work:
            rows = await work[TransactionRow].where(account=account, order="nonce", after=nonce - 1)
        return [_stored(row) for row in sorted(rows, key=lambda row: (row.nonce, row.attempt))]

    async def next_nonce(self, account: Address) -> int:
        """See `TransactionStore.next_nonce`."""
        async with self._new_work() as work:
            rows = await work[TransactionRow].where(account=account, order="-nonce", limit=1)
        return rows[0].nonce + 1 if rows else 0

    async def add(self, transaction: StoredTransaction) -> None:
        """See `TransactionStore.add`."""
        async with self._new_work() as work:
            await work[TransactionRow].add(TransactionRow(**vars(transaction)))

    async def mark_failed(self, transaction: StoredTransaction) -> None:
        """See `TransactionStore.mark_failed`."""
        async with self._new_work() as work:
            account, nonce = transaction.account, transaction.nonce
            rows = await work[TransactionRow].where(account=account, nonce=nonce, lock=True)
            if not rows:
                raise InvariantBroken(f"{transaction.key} failed and was never stored")
            for row in rows:
                await work[TransactionRow].put(replace(row, failed=True))


def _stored(row: TransactionRow) -> StoredTransaction:
    return StoredTransaction(**vars(row))
