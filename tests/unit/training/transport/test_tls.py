"""Certificates from session keys: what they say, what they prove, and the two traps."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from contracts.terms.errors import BadSignature
from contracts.terms.ids import SessionKey
from training.transport.tls import issue_leaf, proven_key, session_key_of, trust_anchor

ALICE = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)


def leaf_of(private_key: Ed25519PrivateKey) -> x509.Certificate:
    """A freshly issued leaf, parsed."""
    return x509.load_pem_x509_certificate(issue_leaf(private_key).certificate)


def test_anchor__of_no_key__bad_signature() -> None:
    with pytest.raises(BadSignature):
        trust_anchor(SessionKey(b"short"))


def test_leaf__clock_off_by_decades__is_still_valid() -> None:
    leaf = leaf_of(ALICE)

    for year in (2001, 2099):
        moment = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
        assert leaf.not_valid_before_utc < moment < leaf.not_valid_after_utc


def test_leaf__in_a_log__shows_no_private_key() -> None:
    assert repr(issue_leaf(ALICE)) == "Leaf(...)"


def certificate(*names: x509.GeneralName) -> bytes:
    """A certificate signed by Alice with these alternative names."""
    signed = issue_leaf(ALICE)
    leaf = x509.load_pem_x509_certificate(signed.certificate)
    builder = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject)
        .issuer_name(leaf.issuer)
        .public_key(leaf.public_key())
        .serial_number(1)
        .not_valid_before(leaf.not_valid_before_utc)
        .not_valid_after(leaf.not_valid_after_utc)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(ALICE, None).public_bytes(Encoding.PEM)


OWN = x509.UniformResourceIdentifier("tallystick:" + session_key_of(ALICE).hex())


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        certificate(),
        certificate(x509.DNSName("peer.tallystick")),
        certificate(OWN, OWN),
        certificate(OWN, x509.UniformResourceIdentifier("tallystick:" + "00" * 32)),
        certificate(x509.UniformResourceIdentifier("tallystick:xyz")),
        certificate(x509.UniformResourceIdentifier("tallystick:00")),
        certificate(x509.UniformResourceIdentifier("tallystick:" + "ff" * 32)),
        trust_anchor(session_key_of(ALICE)),
    ],
    ids=[
        "nothing",
        "junk",
        "no names",
        "no uri",
        "twice",
        "two",
        "no hex",
        "short",
        "bad",
        "anchor",
    ],
)
def test_proven_key__certificate_that_proves_nobody__bad_signature(pem: bytes) -> None:
    with pytest.raises(BadSignature):
        proven_key(pem)
