"""Two values that one key signed under one name: a proof of two signed messages. Pure.

A signer may state one value under a name (`Message.stated_name`), so two values need no
judge: anybody checks the file offline. A wallet's signature leads to its account. A session key is
in the file itself, with the message by which a wallet took it for the job if whoever made the file
had it: its `bonds`. That of a member is its LeaseAccept; of a coordinator, for what its wallet
signed, the JobSpec, and for what its session key signed also the JobOpening.

Invariants: both messages have one name and two digests, and one key signed both; bonds that do not
fit are refused. Without bonds the file says what a key did, and not whose it is.
Source: docs/protocol.md 1 and 4.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from contracts.terms.auditors import AuditorList
from contracts.terms.digest import peer_id
from contracts.terms.encoding import MAX_MESSAGE_BYTES, encode
from contracts.terms.errors import AuditMismatch
from contracts.terms.history import Kept
from contracts.terms.ids import Address, JobId, PeerId, SessionKey
from contracts.terms.messages import (
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Notice,
    Seal,
    StepBeacon,
    Validation,
    WalletMessage,
)
from contracts.terms.signatures import Signed, recover, verify_session, verify_wallet
from contracts.terms.typed_data import Domain
from contracts.terms.work import RoundClosed, WorkClaim
from verification.reading import (
    Field,
    at,
    mismatch,
    read_domain,
    read_map,
    read_signed,
    require,
)

VERSION = "equivocation.v2"
MAX_PROOF_BYTES = 4 * MAX_MESSAGE_BYTES
BY_WALLET = SessionKey(b"")
BY_COORDINATOR = (RoundClosed, StepBeacon, Validation, Notice)
"""What the coordinator's session key signs."""


@dataclass(frozen=True)
class TwoValues:
    """What a file holds, read and not yet checked."""

    domain: Domain
    first: Signed[Message]
    second: Signed[Message]
    key: SessionKey = BY_WALLET  # of both signatures
    bonds: tuple[Signed[Message], ...] = ()  # what makes the signer a party of the job

    def encoded(self) -> bytes:
        """The file's bytes."""
        return encode(
            {
                "version": VERSION,
                "chain": {"chain_id": self.domain.chain_id, "escrow": self.domain.escrow},
                "first": self.first.value(),
                "second": self.second.value(),
                "key": self.key,
                "bonds": [each.value() for each in self.bonds],
            }
        )


@dataclass(frozen=True)
class Equivocated:
    """What a file proves."""

    kind: str  # of the two messages
    job: JobId
    key: SessionKey  # that signed both; empty: a wallet did
    account: Address | None  # whose it is; None: the file does not say
    is_bound: bool  # by a message that makes the account a party of the job


def read_proof(data: bytes) -> TwoValues:
    """The file that `data` spells. Only its form is checked.

    Raises:
        Unreadable: it is damaged, or of another version.
        AuditMismatch: it has a field too few or too many; data: `path`.
    """
    value = read_map(data, VERSION, max_bytes=MAX_PROOF_BYTES)
    fields = Field(value).record("version", "chain", "first", "second", "key", "bonds")
    return TwoValues(
        read_domain(fields["chain"].record("chain_id", "escrow")),
        read_signed(fields["first"]),
        read_signed(fields["second"]),
        SessionKey(fields["key"].bytes(0, 32)),
        tuple(read_signed(each) for each in fields["bonds"].list()),
    )


def prove(two: TwoValues) -> Equivocated:
    """What the file proves.

    Raises:
        AuditMismatch: nothing; data: `path` of what does not fit.
    """
    message, other = two.first.message, two.second.message
    name = message.stated_name()
    require(name is not None, "first", f"a {message.kind} may be said many times")
    require(other.stated_name() == name, "second", "it does not stand under the same name")
    require(other.digest() != message.digest(), "second", "it says the same")
    job = getattr(message, "job", None)
    assert isinstance(job, bytes)  # what has a name has a job
    account = _check_signatures(two)
    if not two.bonds:
        return Equivocated(message.kind, JobId(job), two.key, account, is_bound=False)
    with at("bonds"):
        account = _check_bonds(two, JobId(job), account)
    return Equivocated(message.kind, JobId(job), two.key, account, is_bound=True)


def _check_signatures(two: TwoValues) -> Address | None:
    """The account of the wallet that signed both; None if a session key did."""
    if isinstance(two.first.message, WalletMessage):
        require(two.key == BY_WALLET, "key", "a wallet signs such messages")
        with at("first"):
            account = _recovered(two.first, two.domain)
        with at("second"):
            same = _recovered(two.second, two.domain) == account
        require(same, "second", "another wallet signed it")
        return account
    require(two.key != BY_WALLET, "key", "the session key is missing")
    for path, signed in (("first", two.first), ("second", two.second)):
        with at(path):
            verify_session(signed, two.key)
    signer = signer_named(two.first.message)
    require(signer in (None, peer_id(two.key)), "key", "the messages name another signer")
    return None


def _check_bonds(two: TwoValues, job: JobId, account: Address | None) -> Address:
    """The account that the bonds make a party of the job; it signed by its wallet or by the key."""
    is_coordinators = isinstance(two.first.message, BY_COORDINATOR)
    match [bond.message for bond in two.bonds]:
        case [LeaseAccept() as lease] if account is None and not is_coordinators:
            require((lease.job, lease.session_key) == (job, two.key), "bonds", "of another key")
            verify_wallet(two.bonds[0], lease.account, two.domain)
            return lease.account
        case [JobSpec() as spec] if isinstance(two.first.message, Seal | JobOpening):
            _check_spec(two, spec, job)
            require(spec.coordinator == account, "bonds", "it names another coordinator")
            return spec.coordinator
        case [JobSpec() as spec, JobOpening() as opening] if is_coordinators:
            _check_spec(two, spec, job)
            require((opening.job, opening.session_key) == (job, two.key), "bonds", "of another key")
            verify_wallet(two.bonds[1], spec.coordinator, two.domain)
            return spec.coordinator
    mismatch("bonds", "they say nothing of who signed the two")


def _check_spec(two: TwoValues, spec: JobSpec, job: JobId) -> None:
    require(spec.job() == job, "bonds", "the spec is of another job")
    verify_wallet(two.bonds[0], spec.poster, two.domain)


def signer_named(message: Message) -> PeerId | None:
    """Whose message it says that it is; None of a coordinator's."""
    return message.peer if isinstance(message, WorkClaim) else None


# ---------------------------------------------------------------------- made of two histories


@dataclass
class _Parties:
    """Who is who by the histories themselves."""

    spec: Signed[Message] | None = None
    opening: Signed[Message] | None = None
    leases: dict[PeerId, Signed[Message]] = field(default_factory=dict)
    keys: dict[PeerId, SessionKey] = field(default_factory=dict)

    def note(self, item: Kept) -> None:
        """Take what an item says of parties; the first that is said counts."""
        match item:
            case AuditorList():
                self.keys |= {each.peer: each.session_key for each in item.auditors}
            case Signed(message=JobSpec()):
                self.spec = self.spec or item
            case Signed(message=JobOpening()):
                self.opening = self.opening or item
            case Signed(message=LeaseAccept() as lease):
                peer = peer_id(lease.session_key)
                self.keys[peer] = lease.session_key
                self.leases.setdefault(peer, item)

    def two(self, first: Signed[Message], second: Signed[Message], domain: Domain) -> TwoValues:
        """Two messages with the key that signed them, and its bonds."""
        message = first.message
        if isinstance(message, WalletMessage):
            is_lease = isinstance(message, LeaseAccept)
            return TwoValues(domain, first, second, bonds=() if is_lease else _known(self.spec))
        peer = signer_named(message)
        if peer is not None:
            key = self.keys.get(peer, BY_WALLET)
            return TwoValues(domain, first, second, key, _known(self.leases.get(peer)))
        opening = self.opening.message if self.opening else None
        key = opening.session_key if isinstance(opening, JobOpening) else BY_WALLET
        return TwoValues(domain, first, second, key, _known(self.spec, self.opening))


def contradictions(
    ours: Iterable[Kept], theirs: Iterable[Kept], domain: Domain
) -> Iterator[TwoValues]:
    """Proofs that two histories of a job hold together: what one key has said twice in them."""
    parties, said = _Parties(), dict[tuple[object, ...], Signed[Message]]()
    for item in [*ours, *theirs]:
        parties.note(item)
        name = item.message.stated_name() if isinstance(item, Signed) else None
        if name is None or not isinstance(item, Signed):
            continue
        first = said.setdefault(name, item)
        two = parties.two(first, item, domain)
        if _proves(two):
            yield two


def _known(*bonds: Signed[Message] | None) -> tuple[Signed[Message], ...]:
    return tuple(bond for bond in bonds if bond is not None)


def _proves(two: TwoValues) -> bool:
    try:
        prove(two)
    except AuditMismatch:
        return False
    return True


def _recovered(signed: Signed[Message], domain: Domain) -> Address:
    return recover(domain.signing_digest(signed.message.digest()), signed.signature)
