"""The rules of `every_step` as one object. Pure."""

from contracts.terms.messages import JobSpec
from training.strategies.every_step.assign import assign
from training.strategies.every_step.closes import closes
from training.strategies.every_step.cost import cost
from training.strategies.every_step.layout import layout
from training.strategies.port import Assignment, Cost, Decision, Layout, Machine, View


class EveryStep:
    """See `PureStrategy`."""

    def layout(self, spec: JobSpec) -> Layout:
        """See `layout.py`."""
        return layout(spec)

    def cost(self, spec: JobSpec, machine: Machine) -> Cost:
        """See `cost.py`."""
        return cost(spec, machine)

    def assign(self, view: View) -> tuple[Assignment, ...]:
        """See `assign.py`."""
        return assign(view)

    def closes(self, view: View) -> Decision:
        """See `closes.py`."""
        return closes(view)
