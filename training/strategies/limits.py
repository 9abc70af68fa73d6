"""What a job's strategy says of sizes: what its peers hold, which numbers a part may have. Pure."""

import math
from collections.abc import Callable

from contracts.terms.ids import ChunkIndex
from contracts.terms.messages import BatchSpec, JobSpec
from contracts.terms.work import WhatField
from training.memory import EVERY_STEP, Footprint
from training.strategies.local.footprint import footprint
from training.strategies.local.movement import Numbers, numbers_of_parts


def footprint_of(batch: BatchSpec) -> Footprint:
    """What a peer of the job holds."""
    return EVERY_STEP if batch.local is None else footprint(batch.local)


def numbers_of(spec: JobSpec) -> Callable[[WhatField, ChunkIndex], Numbers]:
    """What a shard (`work`) or a bucket of a number may have in it."""
    if spec.batch.local is not None:
        return numbers_of_parts(spec, spec.batch.local)
    of_shard, of_bucket = ((each, (-math.inf, math.inf)) for each in spec.rules.part_codecs)
    return lambda what, bucket: of_bucket if what == "bucket" else of_shard
