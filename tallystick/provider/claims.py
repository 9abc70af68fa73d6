"""Claims: what the newest final epoch owes an account beyond what it was paid.

The amount is cumulative, so a claim that is repeated pays nothing twice.
"""

from dataclasses import dataclass

from contracts.chain.connection import Receipt
from contracts.chain.contracts import Contracts
from contracts.chain.sender import Sender
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused, NotFound
from contracts.terms.ids import Address
from contracts.terms.merkle import Proof, SumNode
from market.bodies.routes import GET_EPOCHS, GET_PROOF
from market.bodies.settlement import ProofView
from tallystick.sdk.client import MarketClient


@dataclass(frozen=True)
class Due:
    """What can be claimed now."""

    proof: ProofView
    amount: BaseUnits


class Dues:
    """What an account can claim, looked for again and again."""

    def __init__(self, client: MarketClient, account: Address) -> None:
        self._client, self._account = client, account
        self._owed: tuple[int, BaseUnits] | None = None  # by an epoch that is final

    async def look(self, claimed: BaseUnits) -> Due | None:
        """What can be claimed beyond `claimed`, which was paid so far; None: nothing."""
        epochs = (await self._client.call(GET_EPOCHS)).epochs
        final = next((each.epoch for each in epochs if each.state == "final"), None)
        if final is None or self._is_paid(final, claimed):
            return None
        try:
            proof = await self._client.call(GET_PROOF, number=final, account=self._account)
        except NotFound:
            self._owed = final, BaseUnits(0)
            return None
        self._owed = final, proof.cumulative
        amount = BaseUnits(max(0, proof.cumulative - claimed))
        return Due(proof, amount) if amount else None

    def _is_paid(self, final: int, claimed: BaseUnits) -> bool:
        """Whether the chain has paid all that this epoch owes: its leaves never change."""
        return self._owed is not None and self._owed[0] == final and self._owed[1] <= claimed


async def claim(due: Due, contracts: Contracts, sender: Sender) -> Receipt:
    """Claim it, once.

    Raises:
        ContractRefused: a newer epoch became final in between: look again.
    """
    proof = due.proof
    path = Proof(tuple((SumNode(s.hash, s.sum), s.left) for s in proof.siblings))
    call = contracts.settlement.claim(proof.account, proof.cumulative, proof.jobs_root, path)
    return await sender.send(f"claim:{proof.root.hex()}:{proof.cumulative}", call)


def refused_claim(error: ContractRefused) -> str:
    """Why the contract refused a claim, as a sentence."""
    if "WrongProof" in error.message:
        return (
            "a claim was refused because a newer epoch became final before it was mined; nothing "
            "is lost, what is owed is claimed by the newer epoch's proof (WrongProof)"
        )
    return f"a claim was refused by the Settlement contract, and is tried again: {error.message}"
