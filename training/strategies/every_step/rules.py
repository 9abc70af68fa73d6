"""The rules of `every_step` as one object. Pure."""

from training.strategies.every_step.assign import assign
from training.strategies.every_step.closes import closes
from training.strategies.every_step.layout import layout


class EveryStep:
    """See `PureStrategy`, and the module of each rule."""

    layout = staticmethod(layout)
    assign = staticmethod(assign)
    closes = staticmethod(closes)
