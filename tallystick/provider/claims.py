"""Claims: what the newest final epoch owes an account beyond what it was paid.

The amount is cumulative, so a claim that is repeated pays nothing twice.
"""

from dataclasses import dataclass

from contracts.chain.connection import Receipt, Sender
from contracts.chain.contracts import Contracts
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address
from contracts.terms.merkle import Proof, SumNode
from market.api.schemas import ProofView
from tallystick.sdk.client import MarketClient


@dataclass(frozen=True)
class Due:
    """What can be claimed now."""

    proof: ProofView
    amount: BaseUnits


async def due_to(client: MarketClient, account: Address, claimed: BaseUnits) -> Due | None:
    """What `account`, which was paid `claimed` so far, can claim; None: nothing."""
    epochs = (await client.epochs()).epochs
    final = next((epoch for epoch in epochs if epoch.state == "final"), None)
    if final is None:
        return None
    try:
        proof = await client.proof(final.epoch, account)
    except NotFound:
        return None
    amount = BaseUnits(max(0, proof.cumulative - claimed))
    return Due(proof, amount) if amount else None


async def claim(due: Due, contracts: Contracts, sender: Sender) -> Receipt:
    """Claim it, once.

    Raises:
        ContractRefused: a newer epoch became final in between: look again.
    """
    proof = due.proof
    path = Proof(tuple((SumNode(s.hash, s.sum), s.left) for s in proof.siblings))
    call = contracts.settlement.claim(proof.account, proof.cumulative, proof.jobs_root, path)
    return await sender.send(f"claim:{proof.root.hex()}:{proof.cumulative}", call)
