"""What a peer that takes local steps holds, in vectors of its weights. Pure."""

from contracts.terms.messages import LocalSpec
from training.memory import Footprint


def footprint(local: LocalSpec) -> Footprint:
    """Of one replica; sealed moments are there once more than those that steps change."""
    moments, ahead = local.num_vectors - 1, int(local.overlap)
    remedy = "strategy every_step and more stages"
    return Footprint(
        # Sealed weights, a copy, momentum, difference, the weights before; moments travel.
        at_work=4 + 2 * moments + ahead,
        # Both moments of its steps, the weights that it began with, and those that it goes on from.
        in_replay=3 + moments + 2 * ahead,
        replayed_graphs=0,  # each step is done whole before the next
        exchanged=local.num_vectors,
        checkpoint=2 + moments + ahead,  # weights and outer momentum
        round_in_work=2 * 3,  # weights and both moments, and those that replace them
        base=2 + moments + ahead if moments or ahead else 1,  # with more a whole checkpoint
        remedy=f"local.moments: restart, or {remedy}" if moments else remedy,
    )
