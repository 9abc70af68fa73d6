"""Who a TLS peer is: certificates without an authority, from session keys alone.

A peer's Ed25519 session key signs a P-256 leaf of its own (an Ed25519 leaf fails in gRPC); whoever
wants that peer trusts an anchor that names just that key. An anchor is a name and a public key (RFC
5280 section 6.1.1), its own signature is never checked, so everybody makes the anchor of a key
himself: no peer sends one, and membership carries keys only. Two traps:

* anchors need different subjects: the subject is the key in hex, and SKI and AKI are set;
* a member can issue a leaf that names another member, and TLS accepts it, because both are
  trusted: `proven_key` checks that the leaf is signed by the key that it names.

Validity is a century, so clocks decide nothing here; `wire.Hello` refuses a clock that is off.
"""

import datetime
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from contracts.terms.errors import BadSignature
from contracts.terms.ids import SessionKey

SERVER_NAME = "peer.tallystick"  # every leaf has it; the pinned anchor decides who it is
URI_PREFIX = "tallystick:"

_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
# Signs anchors, where a signature must stand and none is checked. Trusted by nobody.
_NOBODY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_KEY_ID_BYTES = 20
_MAX_ANCHORS = 8192


@dataclass(frozen=True)
class Leaf:
    """A certificate for one process, with its own fresh P-256 key; both PEM."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return "Leaf(...)"  # a private key does not belong in a log


def session_key_of(private_key: Ed25519PrivateKey) -> SessionKey:
    """The public half, which names the peer."""
    return SessionKey(private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


@lru_cache(_MAX_ANCHORS)
def trust_anchor(key: SessionKey) -> bytes:
    """PEM of the anchor that trusts exactly what `key` signs; the same bytes everywhere.

    Raises:
        BadSignature: `key` is no Ed25519 public key.
    """
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(key))
        .issuer_name(_name(key))
        .public_key(_public(key))
        .serial_number(1)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(key[:_KEY_ID_BYTES]), critical=False)
    )
    return builder.sign(_NOBODY, None).public_bytes(Encoding.PEM)


def issue_leaf(private_key: Ed25519PrivateKey, *, names: SessionKey | None = None) -> Leaf:
    """A leaf signed by `private_key`, good as client and as server.

    Args:
        private_key: The session key.
        names: Whom the leaf claims to be; anybody but the signer is a forgery, for tests.
    """
    signer = session_key_of(private_key)
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.UniformResourceIdentifier(URI_PREFIX + (names or signer).hex())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)]))
        .issuer_name(_name(signer))
        .public_key(leaf_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), uri]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier(signer[:_KEY_ID_BYTES], None, None), critical=False
        )
        .sign(private_key, None)
    )
    return Leaf(
        certificate.public_bytes(Encoding.PEM),
        leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def proven_key(leaf_pem: bytes) -> SessionKey:
    """Whom a leaf proves: the key that it names, if that very key signed it.

    Raises:
        BadSignature: it names nobody, several, or somebody who did not sign it.
    """
    try:
        leaf = x509.load_pem_x509_certificate(leaf_pem)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        [named] = [uri for uri in uris if uri.startswith(URI_PREFIX)]
        key = SessionKey(bytes.fromhex(named.removeprefix(URI_PREFIX)))
    except (ValueError, x509.ExtensionNotFound) as error:
        raise BadSignature("a certificate that names no session key") from error
    try:
        _public(key).verify(leaf.signature, leaf.tbs_certificate_bytes)
    except InvalidSignature as error:
        raise BadSignature(
            f"a certificate names {key.hex()[:16]}, who did not sign it", node=key.hex()
        ) from error
    return key


def _public(key: SessionKey) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(key)
    except ValueError as error:
        raise BadSignature("not an Ed25519 public key") from error


def _name(key: SessionKey) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, key.hex())])


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
