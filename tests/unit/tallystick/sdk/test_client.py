"""What the client makes of answers: values, our own errors, and of no market's answer one error."""

import json
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest

from contracts.terms import errors
from contracts.terms.ids import Digest, JobId
from market.api.problems import STATUS
from market.bodies.routes import GET_JOBS
from tallystick.sdk import client as client_module
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.http import http_url

URL = "http://127.0.0.1:8420"
ERRORS = sorted({error.code for error in STATUS} - {errors.InvariantBroken.code})


def asking(answer: Callable[[httpx.Request], httpx.Response]) -> MarketClient:
    return MarketClient(URL, transport=httpx.MockTransport(answer))


def saying(status: int, body: bytes) -> MarketClient:
    """A client whose market always answers this."""
    return asking(lambda request: httpx.Response(status, content=body))


def problem(code: str, status: int = 409, /, **data: object) -> bytes:
    fields = {"type": "about:blank", "title": "T", "status": status, "code": code}
    return json.dumps(fields | {"detail": "so it is", "data": data}).encode()


@pytest.mark.parametrize("code", ERRORS)
async def test_problem__each_code__is_raised_as_its_class(code: str) -> None:
    with pytest.raises(errors.error_class(code)) as raised:
        await saying(409, problem(code, wanted="more")).call(GET_JOBS)

    assert type(raised.value) is errors.error_class(code)
    assert (raised.value.message, raised.value.data) == ("so it is", {"wanted": "more"})


async def test_problem__data_named_like_arguments__is_only_data() -> None:
    with pytest.raises(errors.TallystickError) as raised:
        await saying(409, problem("conflict", message="x", self="y", code="z")).call(GET_JOBS)

    assert raised.value.data == {"message": "x", "self": "y", "code": "z"}


async def test_problem__bug_of_the_market__is_not_taken_for_ours() -> None:
    with pytest.raises(errors.ServiceUnreachable):
        await saying(500, problem("invariant_broken", 500)).call(GET_JOBS)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, errors.Malformed),
        (301, errors.Malformed),
        (404, errors.Malformed),
        (500, errors.ServiceUnreachable),
    ],
)
@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"jobs": 5}', b"\xff", b"[" * 9999])
async def test_answer__of_no_market__is_one_error_that_names_the_url(
    status: int, kind: type[errors.TallystickError], body: bytes
) -> None:
    with pytest.raises(kind, match=URL) as raised:
        await saying(status, body).call(GET_JOBS)

    assert len(str(raised.value)) < 500


async def test_answer__longer_than_any__is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 1000)

    with pytest.raises(errors.TooLarge):
        await saying(200, bytes(1001)).call(GET_JOBS)


@pytest.mark.parametrize("error", [httpx.ConnectError("no"), httpx.ReadTimeout("late")])
async def test_no_answer__any_reason__is_unreachable(error: httpx.HTTPError) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(errors.ServiceUnreachable, match="is it up"):
        await asking(fail).call(GET_JOBS)


@pytest.mark.parametrize("body", [b"\x80", b"\x91\x01", b"\x91\x92\x01\x02", b"<html>"])
async def test_messages__not_as_they_should_be__are_malformed(body: bytes) -> None:
    with pytest.raises(errors.Malformed):
        [each async for each in saying(200, body).messages(JobId(bytes(32)))]


async def test_get_blob__other_bytes_than_asked_for__is_wrong_bytes() -> None:
    with pytest.raises(errors.WrongBytes):
        await saying(200, b"something else").get_blob(Digest(bytes(32)))


async def test_retrying__refused__is_not_repeated() -> None:
    tries = []

    async def attempt() -> None:
        tries.append(1)
        raise errors.Malformed("no")

    with pytest.raises(errors.Malformed):
        await retrying(attempt)
    assert tries == [1]


async def test_retrying__out_of_patience__raises_the_last_error() -> None:
    async def attempt() -> None:
        raise errors.Unavailable("still")

    with pytest.raises(errors.Unavailable, match="still"):
        await retrying(attempt, patience=timedelta(0))


# ------------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize("url", ["http://a", "https://b.example:9/", "http://[::1]:8", URL + "//"])
def test_http_url__of_a_host__loses_only_its_last_slash(url: str) -> None:
    assert http_url(url, "a market") == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    ["", "a", "ftp://a", "//a", "http://", "http:///x", "http://[", "http://a:x", "http://a:0",
     "http://a:99999", "http://a b", "http://a\n", "http://" + "a" * 5000, "file:///etc/passwd"],
)  # fmt: skip
def test_http_url__anything_else__is_malformed(url: str) -> None:
    with pytest.raises(errors.Malformed, match="no URL of a market"):
        MarketClient(url)
