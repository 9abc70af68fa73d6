"""What a member of a checked job brings beside its arithmetic: its auditor, behind one port."""

from dataclasses import dataclass
from typing import Protocol

from contracts.governance.checking import Begin
from contracts.terms.auditors import AuditorList
from contracts.terms.beacons import Beacons
from training.worker.hosting import MemberHost


class Auditor(Protocol):
    """Does what draws ask of a member, beside its work; see `verification.auditing.program`."""

    async def run(self, host: MemberHost) -> None:
        """Audit for ever; cancelled when the member ends."""


@dataclass(frozen=True)
class Checking:
    """How draws of a job are made and answered."""

    auditors: AuditorList  # that the opening names
    begin: Begin  # makes the fold of its draws
    beacons: Beacons  # as we read them from the chain
    auditor: Auditor
