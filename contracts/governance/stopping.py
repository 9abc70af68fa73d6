"""When does a job stop before its last step? By the rule `stop_early` and sealed losses. Pure.

A loss on validation rows is better if it is more than `min_delta` below the best one before. After
`patience` losses in a row that are no better, no later seal may hold work. What the coordinator
did not say counts neither way. Losses in 1e-6 nats per token. Source: docs/protocol.md 3.10.
"""

from dataclasses import dataclass, replace

from contracts.terms.ids import StepNumber
from contracts.terms.messages import StopEarlySpec, Validation

NO_STEP = StepNumber(0)


@dataclass(frozen=True)
class Validations:
    """What sealed Validations say so far."""

    newest: StepNumber = NO_STEP  # whose state was validated last; 0: none
    best: int | None = None
    since: int = 0  # losses after the best one

    def after(self, said: Validation, rule: StopEarlySpec) -> "Validations":
        """With one more."""
        if self.best is None or said.loss < self.best - rule.min_delta:
            return Validations(said.of, said.loss)
        return replace(self, newest=said.of, since=self.since + 1)

    def end_work(self, rule: StopEarlySpec | None) -> bool:
        """Whether no later seal may hold work."""
        return rule is not None and self.since >= rule.patience
