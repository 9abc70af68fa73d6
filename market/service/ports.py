"""What use cases need from the world: transactions, a chain, blobs, a way to wake others.

Adapters fill these for Postgres, an RPC endpoint, a folder and Redis. A use case takes the time as
an argument.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from contracts.chain.blocks import Block, Log
from contracts.governance.claims import Subtree
from contracts.governance.escrow import Budget, Channel, EscrowState, EscrowTimes
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobHeader, JobSpec, Seal
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.market import NetworkView
from market.domain.limits import Allowance, Rate
from market.service.rows import Row, SlashRow

Order: TypeAlias = Grant | Bond | Quit | End | Close
"""What parties of a job sign for the escrow, and anyone may send."""

R = TypeVar("R", bound=Row)


# ----------------------------------------------------------------------------------------- storage


@dataclass(frozen=True)
class Place:
    """A place in a sorted table: right behind the row with this value and key."""

    value: object  # of the column that is sorted by
    key: tuple[object, ...]


class Rows(Protocol[R]):
    """One table within a transaction."""

    async def get(self, *key: object) -> R | None:
        """The row with this key."""

    async def lock(self, *key: object) -> R | None:
        """The row with this key, held until the transaction ends."""

    async def add(self, row: R) -> R:
        """Store a new row; returned with the number that storage gave it, if it does.

        Raises:
            Conflict: its key or something unique is taken.
        """

    async def add_all(self, rows: Sequence[R]) -> None:
        """Store new rows at once, in order; all bring their numbers, or none. Raises as `add`."""

    async def put(self, row: R) -> None:
        """Store a row, in the place of the one with its key if there is one.

        Raises:
            Conflict: something unique is taken.
        """

    async def put_all(self, rows: Sequence[R]) -> None:
        """Store rows at once, each as `put` does, which it raises as."""

    async def put_later(self, row: R, column: str) -> bool:
        """Store a row as `put` does, unless the one with its key has as much in `column`, or more.

        One statement; returns whether it was stored.
        """

    async def remove(self, *key: object) -> None:
        """Forget the row with this key, or all whose keys begin so; nothing if there is none."""

    async def where(
        self,
        *,
        order: str = "",
        after: object = None,
        limit: int | None = None,
        lock: bool = False,
        **equals: object,
    ) -> list[R]:
        """Rows whose columns equal the given values (one of them, for a tuple), by key.

        Nothing is asked of the database for an empty tuple.

        Args:
            order: Column to sort by, `-column` for descending; then by key.
            after: Only rows whose `order` column is beyond this value; only rows behind it, if it
                is a `Place`.
            limit: At most this many.
            lock: Hold them until the transaction ends; rows that somebody else holds are left out.
            **equals: Column to value.
        """

    async def count(self, **equals: object) -> int:
        """How many rows `where` with the same columns would find."""


class UnitOfWork(Protocol):
    """A transaction: `async with work` commits at its end, rolls back on an exception.

    May be entered again for the next transaction, by one task at a time; entered inside itself, it
    joins the transaction that is open. One that can only read need not be one transaction: each
    statement sees what is committed by then.
    """

    async def __aenter__(self) -> "UnitOfWork": ...

    async def __aexit__(self, *error: object) -> None: ...

    def __getitem__(self, cls: type[R]) -> Rows[R]:
        """The table of a row class."""

    def wake(self, topic: str) -> None:
        """Wake who waits for `topic`, after the commit."""

    def tell(self, feed: bytes, kind: str, at: UnixMillis, data: bytes) -> None:
        """Append an `EventRow` to `feed` at the end of the transaction, and wake its readers.

        Numbers are given last of all, so that they have no gaps, grow in the order in which
        transactions end, and lock nothing for longer than a commit takes.
        """


class Wakeup(Protocol):
    """Tells sleeping readers that there is news; may lose anything, since rows are the truth."""

    async def wake(self, topics: Iterable[str]) -> None:
        """Wake who waits for one of `topics`. Never raises."""

    def listen(self) -> AsyncIterator[str]:
        """Topics, as they are woken.

        An empty one says that listening begins, or began again: something may have been missed.

        Raises:
            ServiceUnreachable: nothing can be heard.
        """


class Limiter(Protocol):
    """Counts what callers ask for."""

    async def take(self, caller: str, rate: Rate) -> Allowance | None:
        """Take one token of a caller's bucket; None if nobody counts now. Never raises."""


class BlobStore(Protocol):
    """Blobs by their BLAKE3 digest. Whatever asks the store raises ServiceUnreachable."""

    async def prepare(self, *, older_than_seconds: float) -> None:
        """Make the place, and remove what processes that died have left of uploads.

        Args:
            older_than_seconds: Since one was begun or written to; another process may still write
                to one that is younger.
        """

    async def put(self, name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int) -> int:
        """Store what `chunks` yields; returns its size. Nothing is kept unless it is `name`.

        Raises:
            TooLarge: more than `max_bytes`.
            WrongBytes: they hash to something else.
        """

    async def size(self, name: Digest) -> int | None:
        """Size in bytes; None if it is not here."""

    async def free_bytes(self) -> int | None:
        """How many more could be stored; None: not known.

        Bytes that `put` has written of a blob which is not here yet count as free: whoever asks
        counts uploads under way with all their bytes.
        """

    def read(self, name: Digest, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Its bytes in pieces, those of [start, end).

        Raises:
            NotFound: it is not here.
        """

    def names(self, after: Digest) -> AsyncIterator[tuple[Digest, UnixMillis]]:
        """All that are here and whose names lie behind `after`, in order; when each was stored."""

    async def remove(self, name: Digest) -> None:
        """Delete it; nothing if it is not here."""


# ------------------------------------------------------------------------------------------- chain


@dataclass(frozen=True)
class AccountNow:
    """An account at the head of the chain."""

    gas: int  # wei
    token: BaseUnits
    permit_nonce: int
    free: BaseUnits  # its balance in the escrow


@dataclass(frozen=True)
class Claim:
    """A part of a job's pay tree that is shown to the escrow."""

    header: JobHeader
    seal: Signed[Seal]
    part: Subtree
    total: BaseUnits  # what its accounts have been paid and shown in all, once the chain ran it


class Chain(Protocol):
    """The contracts, read at a pinned block and written once per intention.

    Every write may be repeated: the same intention happens once and answers with the same
    transaction. Writes raise ContractRefused when the chain says no, and Unavailable when it may or
    may not have happened, or we cannot pay the gas.
    """

    @property
    def domain(self) -> Domain:
        """Where signatures hold."""

    @property
    def anchorer(self) -> Address:
        """Whose anchor chain of SealAnchor holds our batches."""

    async def network(self, version: str, now: UnixMillis) -> NetworkView:
        """What newcomers are told, by a market of this version at this moment."""

    async def times(self) -> EscrowTimes:
        """The times of the escrow, which never change."""

    async def head(self) -> Block:
        """The newest block."""

    async def heads(self) -> tuple[Block, Block]:
        """The newest block, and the newest one that counts as confirmed."""

    async def block(self, number: int) -> Block | None:
        """The block of this number, if the chain has one."""

    async def events(self, first: int, last: int) -> list[Log]:
        """Events of our contracts in blocks `first` to `last`, in chain order.

        Raises:
            ChainForgot: the chain went back while they were read.
        """

    async def account(self, account: Address) -> AccountNow:
        """An account at the head."""

    async def budget(self, job: JobId) -> Budget:
        """A job's budget at the head; empty for one that was never opened."""

    async def channels(
        self, places: Sequence[tuple[JobId, Address]]
    ) -> tuple[Block, Mapping[tuple[JobId, Address], Channel]]:
        """Limits and stakes of accounts in jobs, all at one confirmed block.

        Raises:
            ChainForgot: the node does not know that block's state any more.
        """

    async def escrow_state(self, known: EscrowState, block: Block) -> EscrowState:
        """What the escrow stores in a block of all that `known` has rows of.

        Raises:
            ChainForgot: the node does not know that block's state any more.
        """

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """Put a job's budget into escrow."""

    async def bond_many(self, job: JobId, bonds: Sequence[Signed[Bond]]) -> Digest:
        """Put stakes behind the work of many; those that the escrow does not allow are skipped."""

    async def relay(self, header: JobHeader, order: Signed[Order]) -> Digest:
        """Send what a party of a job has signed."""

    async def claim(self, claim: Claim) -> Digest:
        """Show a part of a pay tree: its accounts are paid what it vests, up to their limits."""

    async def release(self, job: JobId, ended: Mapping[Address, UnixSeconds]) -> Digest:
        """Free limits and stakes of accounts that ended then, `tail` ago."""

    async def reclaim(self, header: JobHeader, amount: BaseUnits, funded: BaseUnits) -> Digest:
        """Give a poster `amount` of what is free in its job, which has `funded` before."""

    async def announce(self, slash: SlashRow, times_announced: int) -> Digest:
        """Announce a slash, as the slasher.

        Its evidence names the intention, and how often the chain has announced it before.
        """

    async def burn(self, slash: SlashRow, times_announced: int) -> Digest:
        """Burn what was announced, in its time, as the slasher."""

    async def anchor(self, root: Digest) -> Digest:
        """Anchor a batch; records the beacon of the one before."""

    async def record(self, root: Digest) -> Digest:
        """Record the beacon of the newest batch, which is `root`."""

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """Grant `number` of an account: gas (wei) and test tokens; their transactions."""

    async def resend(self, newest: Block) -> int:
        """Broadcast again what the chain forgot; returns how many transactions were sent.

        Args:
            newest: The newest block, as it was just read.
        """

    async def is_over(self, until: UnixSeconds) -> bool:
        """Whether the newest block is as late as `until`: contracts go by its time, not by ours.

        On an embedded chain that idles, one empty block is mined for that.
        """


class Locks(Protocol):
    """Who of many processes does something now."""

    def hold(self, name: str) -> AbstractAsyncContextManager[None]:
        """Wait until nobody else holds `name`, and hold it.

        Raises:
            ServiceUnreachable: the database does not answer, or somebody held it for too long.
        """

    def try_hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Whether nobody else holds `name`; then it is held."""
