"""What a peer that takes local steps holds, in vectors of its weights. Pure."""

from contracts.terms.messages import LocalSpec
from training.memory import Footprint


def footprint(local: LocalSpec) -> Footprint:
    """Of one replica; sealed moments are there once more than those that steps change."""
    moments = local.num_vectors - 1
    remedy = "strategy every_step and more stages"
    return Footprint(
        at_work=4 + 2 * moments,  # sealed weights, a copy, momentum, difference; moments travel
        in_replay=3 + moments,  # both moments of its steps, and the weights that it began with
        replayed_graphs=0,  # each step is done whole before the next
        exchanged=local.num_vectors,
        checkpoint=2 + moments,  # weights and outer momentum
        round_in_work=2 * 3,  # weights and both moments, and those that replace them
        base=2 + moments if moments else 1,  # with moments it is a whole checkpoint
        remedy=f"local.moments: restart, or {remedy}" if moments else remedy,
    )
