"""What a step is drawn with, as a market or an agent that reads the chain hands it on. Pure.

A coin is the hash of the block that anchored the first batch with the step's seal; zero where it
was recorded too late, and then everything of the step is drawn (PROTOCOL section 4). One is handed
on only when it counts, so it never changes. As bytes it has a fixed length: a file of coins is
appended to, and read while it grows.
"""

from dataclasses import dataclass
from typing import Protocol

from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, StepNumber

COIN_BYTES = 80


@dataclass(frozen=True)
class Coin:
    """The coin of one step."""

    step: StepNumber
    batch: Digest  # root of the first that holds the step's seal; zero: nobody shows what it holds
    block: int  # that anchored it
    value: Digest

    def encoded(self) -> bytes:
        """`COIN_BYTES` bytes."""
        numbers = self.step.to_bytes(8, "big"), self.block.to_bytes(8, "big")
        return numbers[0] + self.batch + numbers[1] + self.value


def decode_coin(data: bytes) -> Coin:
    """The coin that `data` spells.

    Raises:
        Malformed: another number of bytes.
    """
    if len(data) != COIN_BYTES:
        raise Malformed(f"a coin has {COIN_BYTES} bytes, not {len(data)}")
    step, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[40:48], "big")
    return Coin(StepNumber(step), Digest(data[8:40]), block, Digest(data[48:]))


class Coins(Protocol):
    """Where coordinator, members and auditors of one job get its coins from."""

    async def coin_of(self, step: StepNumber) -> Coin | None:
        """The coin of `step`; None while it does not count yet.

        Raises:
            Unavailable: ask again.
        """
        ...
