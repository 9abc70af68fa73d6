"""What came of running an audit again from its evidence bundle, and what a bundle cannot show.

Distances are integers in 1e-9, as in reports.
"""

from dataclasses import dataclass

from contracts.terms.work import Verdict
from verification.auditing.bundle import Shown

_SEALED = (
    "that a seal holds the claim, and that it was drawn",
    "that its base is the state that its stage had agreed on, and not the coordinator's word alone",
    "that every x and dy is what the neighbouring stages sent",
)
_ROWS = "that rows are those of the job's manifest: no seal says so, and each stage names its own"
_BEACON = "that this beacon drew the report that was repeated"
_SUM = ("that a seal holds the claim, and that it was drawn",)


@dataclass(frozen=True)
class Distance:
    """One measure, 1e-9."""

    name: str
    here: int
    allowed: int  # between this device and the one that the claim was computed on
    said: int  # by the auditor, who may have been allowed more or less

    @property
    def is_far(self) -> bool:
        """Whether it alone makes a mismatch."""
        return self.here > self.allowed


@dataclass(frozen=True)
class Outcome:
    """What came of running an audit again."""

    shown: Shown
    device_class: str
    verdict: Verdict
    distances: tuple[Distance, ...]  # none of a sum, which is compared by bytes

    @property
    def said(self) -> Verdict:
        """What the auditor says."""
        return self.shown.findings.verdict

    @property
    def is_confirmed(self) -> bool:
        """Whether this machine says the same."""
        return self.verdict == self.said

    @property
    def trusted(self) -> tuple[str, ...]:
        """What a bundle cannot show."""
        if self.shown.case.is_of_sum:
            return _SUM
        rows = (_ROWS,) if self.shown.rows else ()
        return (*_SEALED, *rows, *((_BEACON,) if self.shown.case.kind == "report" else ()))
