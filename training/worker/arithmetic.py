"""What a worker computes with, by the JobSpec and whoever has its blobs."""

from functools import cache

from contracts.terms.messages import JobSpec
from training.data.loading import BlobSource, corpus_rows
from training.strategies.registry import strategy_of
from training.worker.ports import Arithmetic


def arithmetic_of(spec: JobSpec, blobs: BlobSource, device: str = "cpu") -> Arithmetic:
    """The strategy and the rows of a job; its corpus is looked at when rows are first needed."""
    rows = cache(lambda: corpus_rows(spec, blobs))
    return Arithmetic(
        lambda compute: strategy_of(spec, blobs, compute, device=device),
        lambda name: rows().read(name),
    )
