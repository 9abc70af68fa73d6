"""A new order from one that the market knows: same model, data and rules, another poster and price.

Weights, tokenizer and data of the first are blobs that are here already, so nothing is uploaded.
"""

from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds


@dataclass(frozen=True)
class Wish:
    """What differs."""

    name: str
    steps: int
    budget: BaseUnits
    price_ceiling: PricePerPflop
    deadline: UnixSeconds


def order_like(
    spec: JobSpec, wish: Wish, *, poster: Address, coordinator: Address, nonce: int
) -> JobSpec:
    """`spec` as somebody else orders it. Whether it is admitted is for `check_job` to say.

    A warm-up that is longer than the job ends with it, as in a job file of that many steps.

    Raises:
        Malformed: a value that no JobSpec may have.
    """
    warmup = min(spec.optimizer.warmup_steps, wish.steps)
    changes = {
        "poster": poster,
        "coordinator": coordinator,
        "nonce": nonce,
        "name": wish.name,
        "budget": wish.budget,
        "epoch_cap": wish.budget,
        "price_ceiling": wish.price_ceiling,
        "deadline": wish.deadline,
        "batch": spec.batch.value() | {"steps": wish.steps},
        "optimizer": spec.optimizer.value() | {"warmup_steps": warmup},
    }
    return JobSpec.from_value(spec.value() | changes)
