"""Is an owner told why pay was lost, once, and of each further loss?"""

from typing import Any

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from market.bodies.earnings import EarningsView, EarningView, PartsView, WaitsForView
from tallystick.provider.slashes import Losses
from tests.support.answering import AnsweringMarket

ANN, JOB = Address(b"a" * 20), JobId(b"j" * 32)


def line(amount: int, sentence: str = "lost: no report came", state: str = "forfeited") -> Any:
    why = WaitsForView(code="missed_report", sentence=sentence, step=None)
    found: Any = EarningView
    return found.model_construct(amount=amount, state=state, waits_for=why)


class Lines(AnsweringMarket):
    """A market with one account's lines, one a page."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    async def get_earnings(self, account: Address, **asked: Any) -> EarningsView:
        """One line, and where the next is."""
        at = int(asked.get("after") or 0)
        lost = sum(each.amount for each in self.lines if each.state == "forfeited")
        view: Any = EarningsView
        parts: Any = PartsView
        found: EarningsView = view.model_construct(
            parts=parts.model_construct(forfeited=BaseUnits(lost)),
            lines=tuple(self.lines[at : at + 1]),
            next=str(at + 1) if at + 1 < len(self.lines) else None,
        )
        return found


async def test_look__pay_is_lost_in_two_seals__each_loss_is_told_once_with_its_reason() -> None:
    said: list[str] = []
    async with Lines() as client:
        losses = Losses(client, ANN, said.append)
        client.lines = [line(5, state="vested"), line(24_000)]
        for _ in range(2):
            await losses.look([JOB])
        client.lines += [line(1000), line(7, "lost: it was found false")]
        await losses.look([JOB])

    assert said == [
        "0.024000 tokens of job 6a6a6a6a6a6a are forfeited: no report came",
        "0.001000 tokens of job 6a6a6a6a6a6a are forfeited: no report came",
        "0.000007 tokens of job 6a6a6a6a6a6a are forfeited: it was found false",
    ]
