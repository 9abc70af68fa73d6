"""Which strategies there are, by their name in the JobSpec.

A strategy is two classes: its rules, which every process has, and its arithmetic, which is imported
by who computes alone, because it loads torch.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from contracts.terms.messages import JobSpec
from training.data.loading import BlobSource
from training.strategies.every_step.rules import EveryStep
from training.strategies.local.rules import Local
from training.strategies.port import Compute, PureStrategy, Strategy

RULES: Mapping[str, Callable[[JobSpec], PureStrategy]] = {
    "every_step": lambda spec: EveryStep(),
    "local": Local,
}
"""Made of the spec."""
ARITHMETIC: Mapping[str, tuple[str, str]] = {
    "every_step": ("training.strategies.every_step.strategy", "EveryStepWithTorch"),
    "local": ("training.strategies.local.strategy", "LocalWithTorch"),
}
"""Module and class, made of (spec, blobs, compute, device)."""


def rules_of(spec: JobSpec) -> PureStrategy:
    """The rules that a job signs."""
    return RULES[spec.strategy](spec)


def strategy_of(
    spec: JobSpec, blobs: BlobSource, compute: Compute, *, device: str = "cpu"
) -> Strategy:
    """The strategy of a job, whole.

    Args:
        spec: Names it.
        blobs: Where the weights come from that the job starts with.
        compute: Runs arithmetic on the thread that computes.
        device: For torch.
    """
    module, name = ARITHMETIC[spec.strategy]
    make = getattr(import_module(module), name)
    return cast(Strategy, make(spec, blobs, compute, device=device))
