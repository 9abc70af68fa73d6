"""Who may be drawn from outside a job: the list that its JobOpening names by digest. Pure.

It lists what can be asked: the accounts that have registered a session key to audit with, and whose
bond in the job is confirmed at the opening block and at least what a lease asks. Left out are
accounts with a lease in the job, its poster and its coordinator: they are not outside. One account
is one auditor, however many machines it has. Stakes in base units.
"""

import itertools
from typing import Annotated, Literal, Self

from annotated_types import Len
from pydantic import model_validator

from contracts.terms.amounts import BaseUnitsField
from contracts.terms.digest import digest, peer_id
from contracts.terms.ids import MAX_PEERS, AddressField, Digest, PeerId, SessionKeyField
from contracts.terms.messages import BlobRecord, Record, Text


class OutsideAuditor(Record):
    """A staked account, and the key that signs its reports."""

    account: AddressField
    stake: BaseUnitsField  # its bond in the job
    session_key: SessionKeyField
    device_class: Text = ""  # as its registration says; decides its thresholds

    @property
    def peer(self) -> PeerId:
        """What it is called in draws and reports."""
        return peer_id(self.session_key)


class AuditorList(BlobRecord):
    """All outside auditors of a job, by account. A changed field is a new version."""

    max_bytes = MAX_PEERS * 256

    kind: Literal["auditor_list.v1"] = "auditor_list.v1"
    auditors: Annotated[tuple[OutsideAuditor, ...], Len(0, MAX_PEERS)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if any(a.account >= b.account for a, b in itertools.pairwise(self.auditors)):
            raise ValueError("accounts must ascend, each once")
        if len({each.session_key for each in self.auditors}) < len(self.auditors):
            raise ValueError("two accounts with one session key")
        if not all(each.stake for each in self.auditors):
            raise ValueError("an auditor without stake")
        return self

    def digest(self) -> Digest:
        """What `JobOpening.outside_auditors` says; of an empty list too."""
        return digest(self.kind, self.encoded())
