"""How well a whole model predicts rows it was not trained on.

Perplexity per byte: exp of the mean loss over every token of the rows; the sum is taken in fp64.
"""

import math
from collections.abc import Sequence

from contracts.terms.errors import NotFinite, Refused
from training.stages.stage import Stage, rows_tensor

ROWS_AT_A_TIME = 8


def mean_loss(stage: Stage, rows: Sequence[bytes]) -> float:
    """Mean loss in nats per token of a whole model over rows of sequence_length + 1 bytes.

    Raises:
        Refused: no rows, or the stage is not the whole model.
        NotFinite: the loss is inf or nan.
    """
    if not rows or not (stage.slice.has_embedding and stage.slice.has_head):
        raise Refused("validation needs rows and the whole model in one stage")
    total, num_tokens = 0.0, 0
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        rows_RT = rows_tensor(rows[start : start + ROWS_AT_A_TIME])
        losses_RT = stage.losses(rows_RT[:, :-1], rows_RT[:, 1:])
        total += float(losses_RT.double().sum())
        num_tokens += losses_RT.numel()
    if not math.isfinite(total):
        raise NotFinite("the validation loss is not finite")
    return total / num_tokens


def validation_perplexity(stage: Stage, rows: Sequence[bytes]) -> float:
    """Perplexity per byte of a whole model over validation rows; errors as `mean_loss`."""
    return math.exp(mean_loss(stage, rows))
