"""Making a job's audit file: what the market kept, and what the chain proves at its head.

The exporter trusts neither: the file is verified before it is written, as its readers will.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from contracts.chain.layout import shipped
from contracts.governance.lane import AnchoredBatch
from contracts.governance.settlement import NOTHING_SETTLED, AccountPay, EpochSettlement
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, JobId
from contracts.terms.messages import JobOpening, LeaseAccept
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.api import schemas
from verification.audit_file import AuditFile
from verification.batches import ShownBatch, show_batch
from verification.collecting import Rpc, read_code, read_lane, take_snapshot
from verification.snapshots import SHIPPED_AS

SHIPS = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}
"""The contracts as this program ships them."""


class Market(Protocol):
    """What is asked of a market; `sdk.client.MarketClient` is one."""

    async def network(self) -> schemas.NetworkView:
        """Chain and contracts."""
        ...

    def messages(self, job: JobId) -> AsyncIterator[tuple[int, Kept]]:
        """All kept items of a job, in order."""
        ...

    async def epochs(self) -> schemas.EpochsView:
        """All settlements."""
        ...

    async def epoch(self, number: int) -> schemas.EpochView:
        """One settlement with all its leaves."""
        ...

    async def batch(self, root: Digest) -> schemas.BatchView:
        """A batch with all its entries."""
        ...


async def export(client: Market, rpc: Rpc, job: JobId) -> AuditFile:
    """The audit file of `job`, pinned to the chain's present head.

    Raises:
        NotFound: the market does not know the job.
        Malformed: the job was not opened yet, so there is nothing to audit.
        Unavailable: market or node do not answer.
    """
    network = await client.network()
    block = int(await rpc.request("eth_blockNumber", []), 16)
    # Seals are kept before they are anchored: read after the head, the history covers the lane.
    items = [item async for _, item in client.messages(job)]
    opening, accounts = _parties(items)
    addresses = {name: _address(network, name) for name in SHIPPED_AS}
    lane = await read_lane(
        rpc,
        addresses["seals"],
        opening.anchorer,
        first_block=network.deployed_block,
        last_block=block,
    )
    snapshot = await take_snapshot(
        rpc,
        SHIPS,
        lambda root: find_settlement(client, root),
        block=block,
        addresses=addresses,
        job=job,
        anchorer=opening.anchorer,
        accounts=accounts,
    )
    return AuditFile(
        Domain(network.chain_id, addresses["settlement"]),
        tuple(items),
        tuple([await _shown(client, batch, opening) for batch in lane]),
        await read_code(rpc, addresses, block),
        (snapshot,),
    )


async def find_settlement(client: Market, root: Digest) -> EpochSettlement:
    """The market's epoch with this root.

    Raises:
        NotFound: it has none.
    """
    if root == ZERO_DIGEST:
        return NOTHING_SETTLED
    for summary in (await client.epochs()).epochs:
        if summary.root == root:
            view = await client.epoch(summary.epoch)
            accounts = tuple(_account(leaf) for leaf in view.leaves)
            return EpochSettlement(EpochNumber(view.epoch), accounts, ())
    raise NotFound(f"the market knows no epoch with the final root {root.hex()}")


def _account(leaf: schemas.EpochLeafView) -> AccountPay:
    return AccountPay(leaf.account, tuple((each.job, each.cumulative) for each in leaf.jobs))


def _address(network: schemas.NetworkView, name: str) -> Address:
    return Address(bytes(getattr(network.contracts, name)))


def _parties(items: list[Kept]) -> tuple[JobOpening, list[Address]]:
    """The opening, and the accounts of all leases."""
    messages = [item.message for item in items if isinstance(item, Signed)]
    opening = next((each for each in messages if isinstance(each, JobOpening)), None)
    if opening is None:
        raise Malformed("this job was not opened yet: there is nothing to audit")
    return opening, [each.account for each in messages if isinstance(each, LeaseAccept)]


async def _shown(client: Market, batch: AnchoredBatch, opening: JobOpening) -> ShownBatch:
    if batch.block <= opening.opening_block:
        return ShownBatch(batch, ())
    view = await client.batch(batch.root)
    entries = [(each.job, each.step, each.seal) for each in view.entries]
    return ShownBatch(batch, show_batch(entries, opening.job))
