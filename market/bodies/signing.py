"""What a client shows or signs that is no message of a job: requests, digests, a host's credential.

A request that its caller signs has `Authorization: Tallystick NAME AT BODY SIGNATURE`. NAME is an
account (20 bytes) or a session key (32), AT the caller's moment in ms since the Unix epoch, BODY
the BLAKE3 digest of the body, SIGNATURE by that wallet (`Wallet.sign_digest`) or session key over
`request_digest`; bytes are hex. It holds for this method, path, query, Idempotency-Key and body, on
this chain and JobEscrow, for `CLOCK_SKEW_MILLIS`. Nothing is stored for it, so it
outlives restarts of both sides. Within its time it may be repeated by who overhears it: routes that
take it do the same request once.

A host shows a credential of its own, made from the operator's token and bound to its name:
`tsh_NAME.MAC`, the name in base64url and a digest of it with the token. Nothing is stored: the
market makes it again from the token that lies in `keys/host-token`, and so does a host that lies
beside it. Another token makes all of them void.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.terms.digest import digest
from contracts.terms.encoding import Value, encode
from contracts.terms.errors import BadSignature
from contracts.terms.ids import Address, Digest, JobId, SessionKey
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain

if TYPE_CHECKING:
    from market.bodies.jobs import StepReport


# ---------------------------------------------------------------------------------------- requests

REQUEST_SCHEME = "Tallystick"
_SIGNATURE_BYTES = {20: 65, 32: 64}  # by the length of the name


@dataclass(frozen=True)
class SignedCall:
    """What a signed request says of itself; `name` is an account or a session key."""

    name: bytes
    at: UnixMillis
    body: Digest
    signature: bytes

    def header(self) -> str:
        """The value of `Authorization`."""
        name, body, signature = self.name.hex(), self.body.hex(), self.signature.hex()
        return f"{REQUEST_SCHEME} {name} {self.at} {body} {signature}"


def request_digest(
    domain: Domain, method: str, target: str, key: str, body: Digest, at: UnixMillis
) -> Digest:
    """What is signed.

    Args:
        domain: Of the market's chain.
        method: In capitals.
        target: Path with its query, from `/v1` on.
        key: Idempotency-Key; empty without one.
        body: BLAKE3 of the body, also of an empty one.
        at: The caller's moment.
    """
    said: list[Value] = [domain.chain_id, domain.escrow, method, target, key, body, at]
    return digest("request", encode(said))


def signed_call(authorization: str) -> SignedCall | None:
    """What a header says; None if it is of another scheme.

    Raises:
        BadSignature: of this scheme, and not in its form.
    """
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != REQUEST_SCHEME.lower():
        return None
    words = rest.split()
    if len(words) == 4 and words[1].isascii() and words[1].isdecimal() and len(words[1]) < 16:
        try:
            name, body, signature = (bytes.fromhex(words[i]) for i in (0, 2, 3))
        except ValueError:
            name = body = signature = b""
        if len(body) == 32 and _SIGNATURE_BYTES.get(len(name)) == len(signature):
            return SignedCall(name, UnixMillis(int(words[1])), Digest(body), signature)
    raise BadSignature(f"Authorization: {REQUEST_SCHEME} NAME AT BODY SIGNATURE, bytes in hex")


# ----------------------------------------------------------------------------------------- digests


def heartbeat_digest(subject: Digest, at: UnixMillis) -> Digest:
    """What a session key signs to say that the offer or lease `subject` is alive at `at`."""
    return digest("heartbeat", subject + at.to_bytes(8, "big"))


def withdrawal_digest(offer: Digest) -> Digest:
    """What an agent's session key signs to withdraw its offer."""
    return digest("withdrawal", offer)


def hosting_digest(host: str, coordinator: Address) -> Digest:
    """What a coordinator's wallet signs (`Wallet.sign_digest`) to be run by `host`."""
    return digest("hosting", coordinator + host.encode())


def auditor_digest(
    account: Address, session_key: SessionKey, device_class: str, at: UnixMillis
) -> Digest:
    """What a wallet signs (`Wallet.sign_digest`) to audit from outside under a session key."""
    return digest("audit key", encode([account, session_key, device_class, at]))


def auditor_subject(account: Address) -> Digest:
    """What heartbeats of an auditor are about."""
    return digest("auditor", account)


def evidence_digest(job: JobId, subject: Digest, bundle: Digest) -> Digest:
    """What an auditor's session key signs to say which bundle shows that `subject` is wrong."""
    return digest("evidence", job + subject + bundle)


def answer_digest(evidence: Digest, answer: Digest) -> Digest:
    """What a convicted account's wallet signs (`Wallet.sign_digest`) to answer a slash."""
    return digest("answer", evidence + answer)


def reports_digest(job: JobId, reports: Sequence["StepReport"]) -> Digest:
    """What a coordinator's session key signs with a batch of step reports."""
    return digest("reports", job + encode([report.model_dump() for report in reports]))


def checkpoint_digest(job: JobId, stage: int, step: int, blob: Digest, failure: str = "") -> Digest:
    """What a member's session key signs to say which index lists its stage's weights.

    With `failure` it says that it could not upload them, and why.
    """
    return digest("checkpoint 2", encode([job, stage, step, blob, failure]))


# ----------------------------------------------------------------------------- a host's credential

PREFIX = "tsh_"


@dataclass(frozen=True)
class HostCredential:
    """Whose credential it is."""

    host: str

    def shown(self, operator_token: str) -> str:
        """The credential as the bearer token that its host shows."""
        name = base64.urlsafe_b64encode(self.host.encode()).decode().rstrip("=")
        said = digest("host credential", encode([operator_token, self.host]))
        return f"{PREFIX}{name}.{said.hex()}"


def host_credential(shown: str, operator_token: str) -> str | None:
    """Name of the host whose credential a bearer token is; None if it is none of this market."""
    name, _, _ = shown.removeprefix(PREFIX).partition(".")
    try:
        host = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    if not operator_token:
        return None
    known = HostCredential(host).shown(operator_token).encode()
    return host if hmac.compare_digest(known, shown.encode(errors="replace")) else None
