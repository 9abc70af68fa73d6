"""When: moments as integers since the Unix epoch. Spans are `timedelta`, beside their users."""

from typing import Annotated, NewType

from annotated_types import Ge, Le

UnixSeconds = NewType("UnixSeconds", int)  # chain time, windows, deadlines of jobs
UnixMillis = NewType("UnixMillis", int)  # the coordinator's receive time, deadlines of steps

UnixSecondsField = Annotated[UnixSeconds, Ge(0), Le(2**40 - 1)]
UnixMillisField = Annotated[UnixMillis, Ge(0), Le(2**53 - 1)]
