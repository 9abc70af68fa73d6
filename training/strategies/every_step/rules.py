"""The rules of `every_step`: groups are stages of a pipeline, items are micro-batches. Pure.

A round closes when every issued item counts in every stage, or when its time is over. A batch gets
smaller only because no more is issued: when the time of a round is over, items that nobody began
leave it, and those that some stage has done are completed. So every stage always merges the same
items.
"""

from contracts.terms.ids import StageIndex
from contracts.terms.messages import JobSpec
from training.strategies.every_step.assign import assign
from training.strategies.port import Decision, Layout, View


class EveryStep:
    """See `PureStrategy`."""

    assign = staticmethod(assign)

    def layout(self, spec: JobSpec) -> Layout:
        """See `PureStrategy.layout`."""
        batch, chunking = spec.batch, spec.chunking
        stages = map(StageIndex, range(batch.stages))
        return Layout(
            outputs={stage: chunking.of_stage(stage) for stage in stages},
            items_per_round=batch.units_per_step,
            ordered_items=batch.units_per_step * batch.steps,
        )

    def closes(self, view: View) -> Decision:
        """See `Closing.closes`."""
        is_over = view.ends is not None and view.now >= view.ends
        if view.phase == "commit":
            if not view.missing and len(view.delivered) == len(view.claims):
                return "close"
            return "reopen" if is_over else "wait"
        if view.issued and all(len(own) == len(view.issued) for own in view.counted.values()):
            return "close"
        if not view.extended:
            return "wait"
        complete = view.complete()
        if is_over:
            return "close" if complete else "void"
        return "close" if complete and complete == view.begun() else "wait"
