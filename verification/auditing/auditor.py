"""How far a claim of work lies from what comes out when it is done again. Uses torch.

What cannot be read, or is not finite, is as far off as can be (docs/protocol.md 5); so is all of a
claim that leaves out a name, or counts an item from whose bytes nothing finite comes: no honest
peer does so. Whoever may be slashed by what an auditor says can be shown why: see `recording`.
"""

from contracts.governance.sealed import SealedClaim
from contracts.terms.ids import StageIndex
from contracts.terms.messages import JobSpec
from training.config import slices_of, train_config
from training.disk import base_bytes
from verification.auditing.replays import Found, Source
from verification.distances.comparison import Comparison
from verification.distances.thresholds import MEASURES, SATURATED, distance_name
from verification.verdicts import is_complete, kinds_of, recipe_of


async def compared(source: Source, sealed: SealedClaim, seed: bytes) -> Found:
    """Satisfies `program.Comparing`: do work again, and measure.

    Raises:
        NotFound: a tensor cannot be found any more.
        Unavailable: whoever has it, or the weights, is not reached. Misbehaved: nobody has the
            right ones.
    """
    claim, spec = sealed.claim, source.spec
    if not is_complete(spec, claim.group, sealed.leaves):
        return Found(_farthest(spec, claim.group), ())
    comparison = Comparison(recipe_of(spec))
    replayed = await source.replay(sealed, seed, comparison)
    if not replayed.is_computable:
        return Found(_farthest(spec, claim.group), replayed.projections)
    return Found(dict(comparison.distances()), replayed.projections)


def _farthest(spec: JobSpec, stage: StageIndex) -> dict[str, int]:
    """Every distance of a stage, as great as it can be."""
    names = (distance_name(kind, each) for kind in kinds_of(spec, stage) for each in MEASURES)
    return dict.fromkeys(names, SATURATED)


def most_weight_bytes(spec: JobSpec, stage: StageIndex) -> int:
    """What a file of a stage's weights can have."""
    model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    return base_bytes(spec, model, slices_of(model, spec.batch.layer_ends)[stage])
