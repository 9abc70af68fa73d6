"""An agent asks for the proof of an epoch until the chain has paid what it says, and no longer."""

from types import SimpleNamespace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, Digest
from market.bodies.settlement import EpochState, EpochSummary, ProofView
from tallystick.provider.money import Dues
from tests.support.answering import AnsweringMarket

ACCOUNT = Address(b"\1" * 20)
HASH = Digest(b"\2" * 32)


class Market(AnsweringMarket):
    """Epochs with their states, and what each owes the account; None: it is in no leaf of it."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, EpochState] = {}
        self.owed: dict[int, int | None] = {}
        self.proofs: list[int] = []  # epochs that were asked for

    def end(self, epoch: int, owed: int | None, state: EpochState = "final") -> None:
        """An epoch that owes the account so much."""
        self.states[epoch], self.owed[epoch] = state, owed

    async def get_epochs(self) -> SimpleNamespace:
        """The newest first."""
        newest_first = sorted(self.states, reverse=True)
        return SimpleNamespace(epochs=tuple(map(self._summary, newest_first)))

    def _summary(self, epoch: int) -> EpochSummary:
        return EpochSummary(
            epoch=epoch,
            state=self.states[epoch],
            root=HASH,
            sum=BaseUnits(100),
            window_ends=None,
            transaction=None,
        )

    async def get_proof(self, number: int, account: Address) -> ProofView:
        """What an epoch owes the account."""
        self.proofs.append(number)
        owed = self.owed[number]
        if owed is None:
            raise NotFound("the account is in no leaf")
        return ProofView(
            account=account,
            jobs_root=HASH,
            cumulative=BaseUnits(owed),
            jobs=(),
            epoch=number,
            state=self.states[number],
            root=HASH,
            root_sum=BaseUnits(100),
            index=0,
            siblings=(),
        )


def dues_at(market: Market) -> Dues:
    return Dues(market, ACCOUNT)


async def amount(dues: Dues, claimed: int) -> int | None:
    due = await dues.look(BaseUnits(claimed))
    return None if due is None else due.amount


async def test_look__claim_is_paid__its_proof_is_not_asked_for_again() -> None:
    market = Market()
    dues = dues_at(market)
    market.end(1, 7)

    first = await amount(dues, 0)
    paid = [await amount(dues, 7), await amount(dues, 7)]
    market.end(2, 9)
    market.end(3, 20, "rejected")
    second = await amount(dues, 7)

    assert (first, paid, second) == (7, [None, None], 2)
    assert market.proofs == [1, 2]


async def test_look__claim_did_not_arrive_or_was_forgotten__is_due_again() -> None:
    market = Market()
    dues = dues_at(market)
    market.end(1, 7)

    assert [await amount(dues, claimed) for claimed in (0, 0, 7, 0)] == [7, 7, None, 7]
