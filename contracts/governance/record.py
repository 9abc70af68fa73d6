"""What is established about a job between two seals: the parties, the members, the pay. Pure.

A `JobRecord` is all that the next seal is derived from. It never changes in place: a lease, or a
seal, makes a new one.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from contracts.governance.checking import Begin, Checking, Unchecked, Unlisted
from contracts.governance.gates import Gates
from contracts.governance.pay import Lease
from contracts.governance.stopping import Validations
from contracts.governance.vesting import PayState
from contracts.terms.amounts import BaseUnits
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import peer_id
from contracts.terms.errors import BadSignature, Conflict, Equivocation, Malformed
from contracts.terms.ids import (
    ZERO_ADDRESS,
    Digest,
    JobId,
    PeerId,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import Cursor
from contracts.terms.messages import (
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Notice,
    Seal,
    StepBeacon,
    Validation,
)
from contracts.terms.signatures import Signed, verify_session, verify_wallet
from contracts.terms.targets import ItemWeights, TargetCounts, item_weights
from contracts.terms.typed_data import Domain
from contracts.terms.work import RoundClosed, WorkClaim

NOBODY_OUTSIDE = AuditorList(auditors=())


@dataclass(frozen=True)
class JobRecord:
    """A job after its opening and `step` sealed steps."""

    domain: Domain
    spec: JobSpec
    opening: JobOpening
    job: JobId
    previous: Digest  # what the next seal extends: the last one, or the opening
    pay: PayState
    leases: Mapping[PeerId, LeaseAccept] = field(default_factory=dict)
    members: Mapping[PeerId, StageIndex] = field(default_factory=dict)  # by sealed Notices
    next_notice: int = 0
    gates: Gates = field(default_factory=Gates)
    outside: AuditorList = NOBODY_OUTSIDE
    targets: TargetCounts | None = None  # once the history has them, in a job that counts them
    checking: Checking = field(default_factory=Unchecked)
    cursor: Cursor = field(default_factory=Cursor)  # of the items that seals cover
    updates: int = 0  # of the model so far
    since_update: tuple[Digest, ...] = ()
    """The seal, or opening, that the newest state comes from, and the void ones since."""
    before_update: tuple[Digest, ...] = ()
    """The same of the state before, where its claims may still be merged."""
    bases: tuple[Digest, ...] = ()  # one a group, of the update that made the newest state
    reported: frozenset[Digest] = frozenset()  # reports that the void ones hold
    reported_before: frozenset[Digest] = frozenset()
    """The same of the state before, the newest update included: late claims may name them."""
    validations: Validations = field(default_factory=Validations)

    @property
    def step(self) -> StepNumber:
        """The last sealed step; 0 before the first."""
        return self.pay.step

    @property
    def ended(self) -> bool:
        """Whether a seal said that it was the last."""
        return self.pay.ended

    @property
    def newest_update(self) -> StepNumber:
        """The step whose update made the newest state; 0: none did."""
        return StepNumber(self.step + 1 - len(self.since_update))

    @cached_property
    def weights(self) -> ItemWeights:
        """What items weigh; raises Conflict: the counts of their targets are not known yet."""
        return item_weights(self.spec, self.targets)

    def seal_before(self, step: StepNumber) -> Digest | None:
        """The seal before `step`, which work of that step extends; None: its base is too old."""
        seals = (*self.before_update, *self.since_update)
        place = step - self.step + len(seals) - 2
        return seals[place] if 0 <= place < len(seals) else None

    def pay_leases(self) -> dict[PeerId, Lease]:
        """Accounts and prices, as `pay_after` wants them; of a member its lease, before a list.

        An account has one bond in the job, which its members share: each stands with its part.
        """
        stakes = {each.account: each.stake for each in self.leases.values()}  # of the newest lease
        sharing = Counter(self.leases[peer].account for peer in self.members)
        leases = dict(self._outside_leases)
        for peer, each in self.leases.items():
            num_sharing = sharing[each.account] + (peer not in self.members)
            stake = BaseUnits(stakes[each.account] // num_sharing)
            leases[peer] = Lease(each.account, each.price, stake, each.device_class)
        return leases

    @cached_property
    def _outside_leases(self) -> dict[PeerId, Lease]:
        audit = self.spec.rules.audit
        if audit is None:
            return {}
        return {
            each.peer: Lease(each.account, audit.price, each.stake, each.device_class)
            for each in self.outside.auditors
        }


def open_job(spec: Signed[JobSpec], opening: Signed[JobOpening], domain: Domain) -> JobRecord:
    """The record of a job that its coordinator has just opened.

    Raises:
        BadSignature: not signed by the poster, or not by the coordinator that he named.
        Conflict: the opening is of another job.
        Malformed: the spec has no FLOPs for one of its stages.
    """
    verify_wallet(spec, spec.message.poster, domain)
    verify_wallet(opening, spec.message.coordinator, domain)
    job = spec.message.job()
    if opening.message.job != job or opening.message.job_spec != spec.message.digest():
        raise Conflict("the opening is of another job")
    if len(spec.message.item_flops) != spec.message.batch.stages:
        raise Malformed("item_flops has one entry per stage")
    pay = PayState(window=spec.message.rules.vesting_window)
    previous = opening.message.digest()
    checking: Checking = Unchecked() if spec.message.rules.audit is None else Unlisted()
    return JobRecord(
        domain,
        spec.message,
        opening.message,
        job,
        previous,
        pay,
        checking=checking,
        since_update=(previous,),
    )


def with_auditors(record: JobRecord, outside: AuditorList, begin: Begin) -> JobRecord:
    """The record of a checked job with the list that its opening names.

    Raises:
        Conflict: nobody checks the job, the list is known already, or it is another one.
        Refused: see `begin`.
    """
    if not isinstance(record.checking, Unlisted):
        raise Conflict("the job has no list of outside auditors, or has it already")
    if outside.digest() != record.opening.outside_auditors:
        raise Conflict("the opening names another list of outside auditors")
    return replace(record, outside=outside, checking=begin(record.spec, outside))


def with_targets(record: JobRecord, targets: TargetCounts) -> JobRecord:
    """The record of a job on chats with the counts that its spec names.

    Raises:
        Conflict: the job names none, they are known already, or these are others.
    """
    if record.targets is not None or record.spec.data.targets != targets.digest():
        raise Conflict("the job names no such counts of targets, or has them already")
    return replace(record, targets=targets)


def with_lease(record: JobRecord, lease: Signed[LeaseAccept]) -> JobRecord:
    """The record with one more peer that may work.

    Raises:
        BadSignature: not signed by the provider's wallet.
        Conflict: another job, a price above the ceiling, too little stake, another device class
            than the job names, a job that has ended.
        Equivocation: the session key has a lease with other terms.
    """
    message = lease.message
    verify_wallet(lease, message.account, record.domain)
    if message.job != record.job or record.ended:
        raise Conflict("the lease is of another job, or of one that has ended")
    if message.price > record.spec.price_ceiling or message.stake < record.spec.min_stake:
        raise Conflict("the lease is above the job's price ceiling, or below its stake")
    if message.account == ZERO_ADDRESS:
        raise Conflict("nobody has this account")
    audit = record.spec.rules.audit
    if audit is not None and not audit.admits(message.device_class):
        raise Conflict(f"the lease is of another device class than {audit.device_class}")
    peer = peer_id(message.session_key)
    known = record.leases.get(peer)
    if known == message:
        raise Conflict("this lease is already known")
    if known is not None or message.session_key == record.opening.session_key:
        raise Equivocation("one session key, two sets of terms", key=message.session_key.hex())
    return replace(record, leases={**record.leases, peer: message})


def signer_of(record: JobRecord, message: Message) -> SessionKey:
    """The session key that binds itself by `message` (`work.UNDER_A_SEAL`).

    Raises:
        BadSignature: it names a peer without a lease.
        Malformed: no message that a seal covers.
    """
    match message:
        case RoundClosed() | StepBeacon() | Validation() | Notice():
            return record.opening.session_key
        case WorkClaim(peer=peer, what=what):
            if peer in record.leases:
                return record.leases[peer].session_key
            for each in record.outside.auditors if what == "report" else ():
                if each.peer == peer:
                    return each.session_key
            raise BadSignature(f"{message.kind}: {peer.hex()} has no lease in this job")
    raise Malformed(f"no seal covers a {message.kind}")


def check_signature(record: JobRecord, signed: Signed[Message]) -> None:
    """Check that a message under a seal, or a seal, is signed by whom it binds, for this job.

    Raises:
        BadSignature: it is not.
        Conflict: it is of another job.
        Malformed: neither a seal nor a message that one covers.
    """
    message = signed.message
    if getattr(message, "job", None) != record.job:
        raise Conflict(f"{message.kind}: of another job")
    if isinstance(message, Seal):
        verify_wallet(signed, record.spec.coordinator, record.domain)
    else:
        verify_session(signed, signer_of(record, message))
