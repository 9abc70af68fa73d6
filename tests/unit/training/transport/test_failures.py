"""An error crosses whatever its text is: else the call that it ends would never end."""

import pytest

from contracts.terms.errors import Unavailable
from contracts.terms.ids import SessionKey
from training.transport.failures import failure_bytes, reported_error

NODE = SessionKey(bytes(32))


@pytest.mark.parametrize("name", ["/disk/\udcff", "/disk/\ud800"])  # of a file, and no UTF-8
def test_failure_bytes__text_that_is_no_utf8__crosses_with_what_can_be_read(name: str) -> None:
    error = Unavailable(f"cannot write {name}: full", path=name)

    reported = reported_error(failure_bytes(error), NODE)

    assert isinstance(reported, Unavailable)
    assert reported.message == "cannot write /disk/?: full"
    assert reported.data == {"path": "/disk/?", "peer": NODE.hex()}
