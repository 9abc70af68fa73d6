"""What a step is drawn with, as a market or an agent that reads the chain hands it on. Pure.

A beacon is the hash of the block that anchored the first batch with the step's seal; zero where it
was recorded too late, and then everything of the step is drawn (docs/protocol.md 4). One is handed
on only when it counts, so it never changes. As bytes it has a fixed length: a file of beacons is
appended to, and read while it grows.

A beacon counts for the seal that its batch holds, and for no other (`check_beacon`): whoever
anchored another leaf under the name of a step may have known what is drawn before the work was
done.
"""

from dataclasses import dataclass
from typing import Protocol

from contracts.terms.errors import InvalidSeal, Malformed, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber
from contracts.terms.messages import StepBeacon

BEACON_BYTES = 112


@dataclass(frozen=True)
class Beacon:
    """The beacon of one step."""

    step: StepNumber
    batch: Digest  # root of the first that holds the step's seal; zero: nobody shows what it holds
    block: int  # that anchored it
    value: Digest
    seal: Digest | None  # of the step, as that batch holds it; None: nobody shows what it holds

    def encoded(self) -> bytes:
        """`BEACON_BYTES` bytes."""
        numbers = self.step.to_bytes(8, "big"), self.block.to_bytes(8, "big")
        return numbers[0] + self.batch + numbers[1] + self.value + (self.seal or ZERO_DIGEST)


def decode_beacon(data: bytes) -> Beacon:
    """The beacon that `data` spells.

    Raises:
        Malformed: another number of bytes.
    """
    if len(data) != BEACON_BYTES:
        raise Malformed(f"a beacon has {BEACON_BYTES} bytes, not {len(data)}")
    step, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[40:48], "big")
    batch, value, seal = Digest(data[8:40]), Digest(data[48:80]), Digest(data[80:])
    return Beacon(StepNumber(step), batch, block, value, None if batch == ZERO_DIGEST else seal)


def check_beacon(said: StepBeacon, beacon: Beacon | None, seal: Digest) -> None:
    """Compare what a seal says of the chain with what we read there ourselves.

    Args:
        said: What stands under the seal.
        beacon: Of that step, as we read it.
        seal: The one of that step that we hold.

    Raises:
        Unavailable: we have not read that far yet.
        InvalidSeal: it is something else, or the chain holds another seal of that step.
    """
    if beacon is None:
        raise Unavailable(f"the beacon of step {said.of} does not count here yet")
    if (beacon.batch, beacon.block, beacon.value) != (said.batch, said.block, said.beacon):
        raise InvalidSeal(f"step_beacon: step {said.of} has another beacon", part="step_beacon")
    if beacon.seal not in (None, seal):
        raise InvalidSeal(
            f"step_beacon: another seal of step {said.of} was anchored", part="step_beacon"
        )


class Beacons(Protocol):
    """Where coordinator, members and auditors of one job get its beacons from."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """The beacon of `step`; None while it does not count yet.

        Raises:
            Unavailable: ask again.
        """
