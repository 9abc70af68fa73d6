"""Making a job's audit file: what the market kept, and what the chain proves, then and now.

The market stored snapshots while the node could prove them: after each epoch, after the refund. A
fresh one at the head follows them where the node proves its head. The exporter trusts neither: the
file is verified before it is written, as its readers will.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from contracts.chain.layout import Place, shipped
from contracts.governance.lane import AnchoredBatch
from contracts.governance.settlement import NOTHING_SETTLED, AccountPay, EpochSettlement
from contracts.terms.errors import ChainForgot, Malformed, NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, JobId
from contracts.terms.messages import JobOpening
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.base import Body
from market.bodies.market import NetworkView
from market.bodies.routes import GET_BATCH, GET_EPOCH, GET_EPOCHS, GET_NETWORK, Route
from market.bodies.settlement import EpochLeafView
from verification.audit.audit_file import AuditFile
from verification.audit.collecting import Rpc, read_code, read_header, read_lane, take_snapshot
from verification.audit.snapshots import SHIPPED_AS, Snapshot, claimants, is_near, wanted_places
from verification.draws.lanes import ShownBatch, is_list, show_batch

SHIPS = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}
"""The contracts as this program ships them."""


V = TypeVar("V")


class Market(Protocol):
    """What is asked of a market; `sdk.client.MarketClient` is one."""

    async def call(
        self, route: Route[V], body: Body | None = None, *, key: str = "", by: Any = None,
        **named: Any,
    ) -> V:  # fmt: skip
        """What an operation answers."""

    def messages(self, job: JobId) -> AsyncIterator[tuple[int, Kept]]:
        """All kept items of a job, in order."""

    async def snapshots(self, job: JobId) -> Sequence[Snapshot]:
        """What was stored of what the chain proved about a job, in order."""


async def export(client: Market, rpc: Rpc, job: JobId) -> AuditFile:
    """The audit file of `job`, pinned to the chain's present head.

    Where the node cannot prove its head, or nothing happened since, it is pinned to the block of
    the last stored snapshot.

    Raises:
        NotFound: the market does not know the job.
        Malformed: the job was not opened yet, so there is nothing to audit.
        ChainForgot: nothing is stored and the node cannot prove its head.
        Unavailable: market or node do not answer.
    """
    network = await client.call(GET_NETWORK)
    stored = await client.snapshots(job)
    head = int(await rpc.request("eth_blockNumber", []), 16)
    # Seals are kept before they are anchored: read after the head, the history covers the lane.
    items = [item async for _, item in client.messages(job)]
    opening, accounts = _parties(items)
    addresses = {name: _address(network, name) for name in SHIPPED_AS}
    places = wanted_places(SHIPS, job, opening.anchorer, accounts)
    stored = await _usable(stored, rpc, head, places)

    async def fresh() -> Snapshot:
        return await take_snapshot(
            rpc,
            lambda root: find_settlement(client, root),
            block=head,
            addresses=addresses,
            places=places,
            before=stored[-1].header if stored else None,
        )

    snapshots = await _up_to(head, stored, fresh)
    lane = await read_lane(
        rpc,
        addresses["seals"],
        opening.anchorer,
        first_block=network.deployed_block,
        last_block=snapshots[-1].header.number,
    )
    return AuditFile(
        Domain(network.chain_id, addresses["settlement"]),
        tuple(items),
        tuple([await _shown(client, batch, opening) for batch in lane]),
        await read_code(rpc, addresses, head),  # it never changes, and old states may be gone
        snapshots,
    )


async def _usable(
    stored: Sequence[Snapshot], rpc: Rpc, head: int, places: Mapping[str, Mapping[str, Place]]
) -> tuple[Snapshot, ...]:
    """The newest stored snapshots that form a chain, on the node's chain, and prove all `places`.

    A member that joined later has a place of its own, which earlier snapshots do not prove.
    """
    wanted = {contract: set(names) for contract, names in places.items()}
    kept: list[Snapshot] = []
    for snapshot in reversed(stored):
        if {contract: set(each.storage) for contract, each in snapshot.contracts.items()} != wanted:
            break
        kept.insert(0, snapshot)
        if snapshot.before is None:
            break
    if not kept or not await _is_known(kept[-1], rpc, head):
        return ()
    return (replace(kept[0], before=None), *kept[1:])


async def _is_known(snapshot: Snapshot, rpc: Rpc, head: int) -> bool:
    number = snapshot.header.number
    return number <= head and await read_header(rpc, number) == snapshot.header


async def _up_to(
    head: int, stored: tuple[Snapshot, ...], fresh: Callable[[], Awaitable[Snapshot]]
) -> tuple[Snapshot, ...]:
    """Stored snapshots, and a fresh one where it can follow them and says something new."""
    if stored and not is_near(stored[-1].header, head):
        return stored  # the head itself, or too far on to prove it
    try:
        newest = await fresh()
    except ChainForgot:
        if not stored:
            raise
        return stored
    return stored if stored and _says_the_same(newest, stored[-1]) else (*stored, newest)


def _says_the_same(newest: Snapshot, before: Snapshot) -> bool:
    """Whether no storage that concerns the job, nor any beside it, has changed."""
    proofs = [{name: each.storage for name, each in s.contracts.items()} for s in (newest, before)]
    return proofs[0] == proofs[1] and newest.settlement.accounts == before.settlement.accounts


async def find_settlement(client: Market, root: Digest) -> EpochSettlement:
    """The market's epoch with this root.

    Raises:
        NotFound: it has none.
    """
    if root == ZERO_DIGEST:
        return NOTHING_SETTLED
    part = await client.call(GET_EPOCHS)
    while part.next and all(each.root != root for each in part.epochs):
        part = await client.call(GET_EPOCHS, cursor=part.next)
    for summary in part.epochs:
        if summary.root == root:
            view = await client.call(GET_EPOCH, number=summary.epoch)
            accounts = tuple(_account(leaf) for leaf in view.leaves)
            return EpochSettlement(EpochNumber(view.epoch), accounts, ())
    raise NotFound(f"the market knows no epoch with the final root {root.hex()}")


def _account(leaf: EpochLeafView) -> AccountPay:
    return AccountPay(leaf.account, tuple((each.job, each.cumulative) for each in leaf.jobs))


def _address(network: NetworkView, name: str) -> Address:
    return Address(bytes(getattr(network.contracts, name)))


def _parties(items: Sequence[Kept]) -> tuple[JobOpening, Sequence[Address]]:
    """The opening, and the accounts that the job may pay."""
    messages = [item.message for item in items if isinstance(item, Signed)]
    opening = next((each for each in messages if isinstance(each, JobOpening)), None)
    if opening is None:
        raise Malformed("this job was not opened yet: there is nothing to audit")
    return opening, claimants(items)


async def _shown(client: Market, batch: AnchoredBatch, opening: JobOpening) -> ShownBatch:
    if batch.block <= opening.opening_block:
        return ShownBatch(batch, ())
    hidden = ShownBatch(batch, (), is_served=False)
    try:
        view = await client.call(GET_BATCH, root=batch.root)
    except NotFound:  # the market lost the list, or hides it: the file says so
        return hidden
    entries = [(each.job, each.step, each.seal) for each in view.entries]
    shown = ShownBatch(batch, show_batch(entries))
    return shown if is_list(shown) else hidden
