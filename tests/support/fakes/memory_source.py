"""What a worker gives to its strategy, in memory: tensors of a round, a thread, a seal."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import formed_digest
from contracts.terms.errors import NotFound
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Seal

T = TypeVar("T")


class MemorySource:
    """Satisfies `port.Source`; peers that share one have each other's tensors."""

    def __init__(self, read_rows: Callable[[str], bytes]) -> None:
        self._read_rows = read_rows
        self.given: dict[str, Any] = {}

    def digest(self, name: str) -> Digest:
        """See `Source.digest`."""
        return formed_digest(self.given[name])

    async def get(self, name: str) -> Any:
        """See `Source.get`."""
        if name.startswith(("rows/", "validation/")) and name not in self.given:
            return self._read_rows(name)
        if name not in self.given:
            raise NotFound(f"no tensor {name}")
        return self.given[name]

    def put(self, name: str, data: bytes) -> Digest:
        """See `Source.put`."""
        self.given[name] = data
        return formed_digest(data)


async def at_once(function: Callable[[], T]) -> T:
    """Satisfies `port.Compute` in the thread that asks."""
    return function()


def ended(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing; also where a loop runs already."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits for something")


def make_seal(step: int, norm: int) -> Seal:
    """A seal of which the norm (1e-9) matters."""
    return Seal(
        job=JobId(ZERO_DIGEST),
        step=StepNumber(step),
        previous=ZERO_DIGEST,
        messages_root=ZERO_DIGEST,
        gradient_norm=norm,
        pay_root=ZERO_DIGEST,
        earned=BaseUnits(0),
        vested=BaseUnits(0),
        next=ItemNumber(0),
        unsealed=(),
        updates=step,
        last=False,
    )
