"""What use cases need from the world: transactions, a chain, blobs, a way to wake others.

Adapters fill these for Postgres, an RPC endpoint, a folder and Redis. A use case takes the time as
an argument.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from contracts.chain.proofs import Header
from contracts.governance.pay import PayLeaf
from contracts.governance.settlement import AccountPay
from contracts.terms.amounts import BaseUnits
from contracts.terms.encoding import Value
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.merkle import Proof, SumNode
from contracts.terms.messages import JobSpec, LeaseAccept, Seal
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.domain.limits import Allowance, Rate
from market.domain.slashing import Slash
from market.service.rows import Row
from verification.audit.collecting import FindSettlement
from verification.audit.snapshots import Snapshot

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
        """Forget the row with this key; nothing if there is none."""

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

    async def emit(self, topic: str, subject: bytes) -> None:
        """Tell others, after the commit and at least once."""

    def tell(self, feed: bytes, kind: str, at: UnixMillis, data: bytes) -> None:
        """Append an `EventRow` to `feed` at the end of the transaction, and wake its readers.

        Numbers are given last of all, so that they have no gaps, grow in the order in which
        transactions end, and lock nothing for longer than a commit takes.
        """


class Wakeup(Protocol):
    """Tells sleeping readers that there is news; may lose anything, since rows are the truth."""

    async def wake(self, topics: Iterable[str]) -> None:
        """Wake who waits for one of `topics`. Never raises."""

    async def wait(self, topic: str, timeout_seconds: float) -> None:
        """Return when `topic` was woken or the time is over."""

    def listen(self, prefix: str) -> AsyncIterator[str]:
        """Topics that begin with `prefix`, as they are woken.

        An empty one says that listening begins, or began again: something may have been missed.

        Raises:
            ServiceUnreachable: nothing can be heard.
        """


class Limiter(Protocol):
    """Counts what callers ask for."""

    async def take(self, caller: str, rate: Rate) -> Allowance | None:
        """Take one token of a caller's bucket; None if nobody counts now. Never raises."""


class BlobStore(Protocol):
    """Blobs by their BLAKE3 digest."""

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

    def read(self, name: Digest) -> AsyncIterator[bytes]:
        """Its bytes in pieces.

        Raises:
            NotFound: it is not here.
        """


# ------------------------------------------------------------------------------------------- chain


@dataclass(frozen=True)
class ChainBlock:
    """A block of the chain."""

    number: int
    hash: Digest
    timestamp: UnixSeconds


@dataclass(frozen=True)
class ChainEvent:
    """An event of one of our contracts; addresses and hashes in `args` are bytes."""

    contract: str
    event: str
    args: Mapping[str, Value]
    block: int
    block_hash: Digest
    transaction: Digest
    log_index: int


@dataclass(frozen=True)
class StakeNow:
    """An account in StakeRegistry; `active` includes what is reserved."""

    active: BaseUnits
    reserved: BaseUnits
    unbonding: BaseUnits

    @property
    def free(self) -> BaseUnits:
        """What a new lease may reserve."""
        return BaseUnits(self.active - self.reserved)


@dataclass(frozen=True)
class AccountNow:
    """An account at the head of the chain."""

    gas: int
    token: BaseUnits
    permit_nonce: int
    claimed: BaseUnits
    stake: StakeNow
    block: int


@dataclass(frozen=True)
class CaseNow:
    """A slash case that has not ended: when it can be executed, by chain time."""

    executable_at: UnixSeconds
    executable_until: UnixSeconds


@dataclass(frozen=True)
class JobNow:
    """A job in JobEscrow."""

    deposited: BaseUnits  # net of refunds
    debited: BaseUnits
    state: str  # none, open, closing, closed
    seals: int  # step of the seal that the close shows + 1; 0: none is shown
    earned: BaseUnits  # by it
    due: BaseUnits
    ends_at: UnixSeconds
    refundable_at: UnixSeconds
    kept_open: int  # latest step + 1 of a seal that undid a close; 0: none was undone


@dataclass(frozen=True)
class EpochNow:
    """The newest epoch in Settlement; states as in `market.service.rows.EpochRow`, or none."""

    number: EpochNumber
    root: Digest
    booked: bool  # final or rejected in storage
    ends_at: UnixSeconds
    next_at: UnixSeconds


@dataclass(frozen=True)
class Totals:
    """What Settlement counts over all epochs."""

    funded: BaseUnits
    paid: BaseUnits


@dataclass(frozen=True)
class PayOrder:
    """A job's statement in a proposal; without a seal, what its close found due."""

    spec: JobSpec
    seal: Signed[Seal] | None


@dataclass(frozen=True)
class CloseProof:
    """The seal that closes a job, and the leaves of its pay tree."""

    seal: Signed[Seal]
    pay: tuple[PayLeaf, ...]


@dataclass(frozen=True)
class Audited:
    """A job, and whose storage concerns it."""

    job: JobId
    anchorer: Address
    accounts: tuple[Address, ...]  # whom it may pay


@dataclass(frozen=True)
class Network:
    """What newcomers are told of the chain."""

    genesis: Digest
    rpc_url: str
    embedded: bool
    contracts: Mapping[str, Address]
    deployed_block: int
    token_name: str
    token_version: str
    token_symbol: str
    token_decimals: int
    token_separator: Digest
    parameters: Mapping[str, int]


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
        """Whose lane of SealAnchor holds our batches."""

    async def network(self) -> Network:
        """What newcomers are told."""

    async def head(self) -> ChainBlock:
        """The newest block."""

    async def heads(self) -> tuple[ChainBlock, ChainBlock]:
        """The newest block, and the newest one that counts as confirmed."""

    async def block(self, number: int) -> ChainBlock | None:
        """The block of this number, if the chain has one."""

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        """Events of our contracts in blocks `first` to `last`, in chain order."""

    async def account(self, account: Address) -> AccountNow:
        """An account at the head."""

    async def stake_of(self, account: Address) -> tuple[int, StakeNow]:
        """An account's stake at the head, and the head's number."""

    async def stakes(
        self, accounts: Sequence[Address]
    ) -> tuple[ChainBlock, Mapping[Address, StakeNow]]:
        """Stakes of accounts, all at one confirmed block.

        Raises:
            ChainForgot: the node does not know that block's state any more.
        """

    async def slashable(self, job: JobId, account: Address) -> BaseUnits:
        """What a slash for `job` could take from `account`, at the head."""

    async def slash_case(self, case: int) -> CaseNow | None:
        """A slash case at the head; None if there is none or it has ended."""

    async def job(self, job: JobId) -> JobNow:
        """A job at the head."""

    async def newest_epoch(self) -> EpochNow:
        """The newest epoch at the head; number 0 before the first."""

    async def totals(self) -> Totals:
        """Settlement's totals at the head."""

    async def snapshot(
        self, audited: Audited, find: FindSettlement, *, block: int, before: Header | None
    ) -> Snapshot:
        """What a block proves about a job, and, unless it is None, about the block `before`.

        Args:
            audited: The job.
            find: Asked for the settlement whose root is final in the block.
            block: Its number.
            before: Of the job's snapshot before.

        Raises:
            ChainForgot: the block is not there, or the node cannot prove it any more.
        """

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """Put a job's budget into escrow."""

    async def reserve(self, accept: Signed[LeaseAccept]) -> Digest:
        """Reserve the stake that a LeaseAccept promises."""

    async def release(self, job: JobId, account: Address) -> Digest:
        """Free the stake of a job that is over."""

    async def anchor(self, root: Digest) -> Digest:
        """Anchor a batch; records the coin of the one before."""

    async def record(self, root: Digest) -> Digest:
        """Record the coin of the newest batch, which is `root`."""

    async def propose(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> Digest:
        """Post an epoch."""

    async def check_proposal(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> None:
        """Ask whether an epoch would be posted; nothing is sent.

        Raises:
            ContractRefused: it would not.
        """

    async def finalize(self, epoch: EpochNumber) -> Digest:
        """Book an epoch whose window is over."""

    async def pay_out(self, paid: AccountPay, proof: Proof[SumNode]) -> Digest:
        """Claim for an account what the final root grants it beyond what it got."""

    async def close(self, spec: JobSpec, proof: CloseProof | None, *, kept_open: int) -> Digest:
        """Start to close a job by a seal, or past its deadline without one.

        Args:
            spec: The job.
            proof: The seal; None if none is known.
            kept_open: See `JobNow`. It grows with every close that is undone, so it tells the
                closes of a job apart: what is shown in one may have to be shown in the next again.
        """

    async def answer_close(self, spec: JobSpec, proof: CloseProof, *, kept_open: int) -> Digest:
        """Answer the close of a job with a better or later seal; `kept_open` as in `close`."""

    async def refund(self, job: JobId) -> Digest:
        """Pay the poster what was not earned."""

    async def announce_slash(self, slash: Slash, times_announced: int) -> Digest:
        """Announce a slash, as the slasher.

        Its evidence names the intention, and how often the chain has announced it before.
        """

    async def execute_slash(self, case: int) -> Digest:
        """Take what was announced."""

    async def drop_slash(self, case: int) -> Digest:
        """End a case without a slash."""

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """Grant `number` of an account: gas (wei) and test tokens; their transactions."""

    async def resend(self, newest: ChainBlock) -> int:
        """Broadcast again what the chain forgot; returns how many transactions were sent.

        Args:
            newest: The newest block, as it was just read.
        """

    async def is_over(self, until: UnixSeconds) -> bool:
        """Whether the newest block is as late as `until`: contracts go by its time, not by ours.

        On an embedded chain that idles, one empty block is mined for that.
        """
