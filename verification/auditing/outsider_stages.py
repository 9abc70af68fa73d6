"""What an outside auditor computes with: any stage of a job, and sums of any chunk. Uses torch."""

import math
from collections.abc import Sequence

from typing_extensions import Buffer

from contracts.terms.ids import StageIndex
from contracts.terms.messages import JobSpec
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice
from training.config import slices_of, train_config
from training.data.loading import BlobSource
from training.models.parameters import parameter_shapes
from training.worker.numeric_recipe import NumericRecipe, corpus_rows
from training.worker.stage_replay import StageReplayer

_HEADER_BYTES = 2**20  # of a file of weights, at most: names, shapes and roots
_WEIGHT_BYTES = 4


class StagesArithmetic:
    """Satisfies `outsider.Arithmetic` with the real stages."""

    def __init__(self, spec: JobSpec, blobs: BlobSource, *, device: str = "cpu") -> None:
        self._spec, self._blobs, self._device = spec, blobs, device

    def replayer(self, stage: StageIndex) -> StageReplayer:
        """See `Arithmetic.replayer`; raises as `NumericRecipe` and `corpus_rows`."""
        rows = corpus_rows(self._spec, self._blobs)
        return StageReplayer(NumericRecipe(self._spec, rows, stage), device=self._device)

    def most_bytes(self, stage: StageIndex) -> int:
        """See `Arithmetic.most_bytes`."""
        spec = self._spec
        model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
        shapes = parameter_shapes(model, slices_of(model, spec.batch.layer_ends)[stage])
        return _HEADER_BYTES + _WEIGHT_BYTES * sum(map(math.prod, shapes.values()))

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]) -> Slice:
        """See `Compute.mean`."""
        return mean_slice(parts, weights, self._spec.rules.gradient_codec, totals=totals)
