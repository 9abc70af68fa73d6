"""Messages and the registry of methods; errors on the wire."""

import re

import pytest

from contracts.terms import errors
from contracts.terms.encoding import encode
from contracts.terms.ids import SessionKey
from contracts.terms.moments import UnixMillis
from training.transport.failures import (
    MAX_FAILURE_BYTES,
    MAX_TEXT,
    Failure,
    failure_bytes,
    reported_error,
)
from training.transport.wire import Method, Ping, Pong, check_clock

PEER = SessionKey(bytes(range(32)))
NOW = UnixMillis(1_800_000_000_000)


@pytest.mark.parametrize("skew_ms", [-120_000, 0, 120_000])
def test_check_clock__within_two_minutes__passes(skew_ms: int) -> None:
    check_clock(UnixMillis(NOW + skew_ms), NOW)


@pytest.mark.parametrize("skew_ms", [-120_001, 120_001])
def test_check_clock__beyond__expired(skew_ms: int) -> None:
    with pytest.raises(errors.Expired) as caught:
        check_clock(UnixMillis(NOW + skew_ms), NOW)

    assert caught.value.data == {"skew_ms": skew_ms}


def test_method__bounds__hold_to_the_byte() -> None:
    method = Method("m", Ping, Pong, max_header_bytes=5, max_tensor_bytes=10, max_tensors=2)

    method.check_request([5, 10, 0])
    method.check_reply([0])
    for lengths in ([6], [0, 11], [0, 6, 5], [0, 0, 0, 0]):
        with pytest.raises(errors.TooLarge) as caught:
            method.check_request(lengths)
        assert caught.value.data["size"] > caught.value.data["limit"]  # type: ignore[operator]
    with pytest.raises(errors.TooLarge):
        method.check_reply([0, 0])


def every_error(
    root: type[errors.TallystickError] = errors.TallystickError,
) -> list[type[errors.TallystickError]]:
    """The tree, without its root and without what a test defines."""
    found = [root, *(leaf for child in root.__subclasses__() for leaf in every_error(child))]
    return [one for one in found if one.__module__ == errors.TallystickError.__module__]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.code)
def test_failure__of_every_class__arrives_as_itself_or_as_something_harmless(
    error: type[errors.TallystickError],
) -> None:
    seen = reported_error(failure_bytes(error("why", step=3)), PEER)

    harmless = {
        errors.InvariantBroken: errors.Unavailable,
        errors.TallystickError: errors.UnknownVersion,
    }
    assert type(seen) is harmless.get(error, error)
    assert seen.data["peer"] == PEER.hex()
    if error not in harmless:
        assert (seen.message, seen.data["step"]) == ("why", 3)


def test_failure__of_our_own_bug__says_nothing_about_it() -> None:
    data = failure_bytes(errors.InvariantBroken("secret", path="/secret"))

    assert b"secret" not in data
    assert Failure.decoded(data, max_bytes=MAX_FAILURE_BYTES).code == "invariant_broken"


def test_failure__with_data_of_any_type__carries_text_where_it_must() -> None:
    error = errors.PeerUnreachable(
        "gone", whole=1, part=0.5, none=None, raw=b"\x00", inner={"a": [1.5]}
    )

    seen = reported_error(failure_bytes(error), PEER)

    assert seen.data == {
        "whole": 1,
        "part": "0.5",
        "none": None,
        "raw": b"\x00",
        "inner": "{'a': [1.5]}",
        "peer": PEER.hex(),
    }


def test_failure__larger_than_its_bound__is_cut_to_it() -> None:
    data = failure_bytes(errors.AuditMismatch("x" * 5000, evidence=bytes(50_000)))

    assert len(data) <= MAX_FAILURE_BYTES
    seen = reported_error(data, PEER)
    assert (len(seen.message), set(seen.data)) == (MAX_TEXT, {"peer"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 20,
        encode({"kind": "failure.v1", "code": "", "message": "", "data": {}}),
        encode({"kind": "failure.v1", "code": "x", "message": "", "data": 3}),
        bytes(MAX_FAILURE_BYTES + 1),
    ],
)
def test_failure__that_cannot_be_read__malformed(data: bytes) -> None:
    assert isinstance(reported_error(data, PEER), errors.Malformed)


def test_failure__data_that_names_the_message__does_not_collide() -> None:
    crafted = Failure(
        code="conflict", message="m", data={"message": "other", "peer": "liar", "self": 1}
    )

    seen = reported_error(crafted.encoded(), PEER)

    assert type(seen) is errors.error_class("conflict")
    assert (seen.message, seen.data["peer"]) == ("m", PEER.hex())
    assert re.fullmatch("m", str(seen))


@pytest.mark.parametrize("name", ["/disk/\udcff", "/disk/\ud800"])  # of a file, and no UTF-8
def test_failure__text_that_is_no_utf8__crosses_with_what_can_be_read(name: str) -> None:
    """Else the call that it ends would never end."""
    seen = reported_error(
        failure_bytes(errors.Unavailable(f"cannot write {name}", path=name)), PEER
    )

    assert isinstance(seen, errors.Unavailable) and seen.message == "cannot write /disk/?"
    assert seen.data == {"path": "/disk/?", "peer": PEER.hex()}
