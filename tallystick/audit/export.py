"""Making a job's audit file: what the market kept, and what a block of the chain proves.

The exporter asks a node of his own for the proof; the market stores none. He trusts neither: the
file is verified before it is written, as its readers will.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeVar

from contracts.chain.layout import shipped
from contracts.governance.anchor_chain import AnchoredBatch
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import JobId
from contracts.terms.messages import JobOpening
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.base import Body
from market.bodies.routes import GET_BATCH, GET_NETWORK, Route
from verification.audit.audit_file import AuditFile
from verification.audit.chain_proof import SHIPPED_AS, claimants, wanted_places
from verification.audit.collecting import Rpc, read_anchor_chain, read_code, take_proof
from verification.draws.anchor_chains import ShownBatch, is_list, show_batch

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


async def export(client: Market, rpc: Rpc, job: JobId, *, block: int | None = None) -> AuditFile:
    """The audit file of `job`, pinned to a block: to the chain's present head, if none is named.

    Raises:
        NotFound: the market does not know the job.
        Malformed: the job was not opened yet, so there is nothing to audit.
        ChainForgot: there is no such block, or the node cannot prove it any more.
        Unavailable: market or node do not answer.
    """
    network = await client.call(GET_NETWORK)
    head = int(await rpc.request("eth_blockNumber", []), 16)
    # Seals are kept before they are anchored: read after the head, the history covers all anchors.
    items = tuple([item async for _, item in client.messages(job)])
    messages = [item.message for item in items if isinstance(item, Signed)]
    opening = next((each for each in messages if isinstance(each, JobOpening)), None)
    if opening is None:
        raise Malformed("this job was not opened yet: there is nothing to audit")
    addresses = {name: getattr(network.contracts, name) for name in SHIPPED_AS}
    proof = await take_proof(
        rpc,
        block=head if block is None else block,
        addresses=addresses,
        places=wanted_places(SHIPS, job, opening.anchorer, claimants(items)),
    )
    anchor_chain = await read_anchor_chain(
        rpc,
        addresses["seals"],
        opening.anchorer,
        first_block=network.deployed_block,
        last_block=proof.header.number,
    )
    return AuditFile(
        Domain(network.chain_id, addresses["escrow"]),
        addresses["seals"],
        items,
        tuple([await _shown(client, batch, opening) for batch in anchor_chain]),
        await read_code(rpc, addresses, head),  # it never changes, and old states may be gone
        proof,
    )


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
