"""When a round of `every_step` closes: every issued item counts in every stage, or time is over.

Pure. A batch gets smaller only because no more is issued: when the time of a round is over, items
that nobody began leave it, and those that some stage has done are completed. So every stage always
merges the same items.
"""

from training.strategies.port import Decision, View


def closes(view: View) -> Decision:
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
