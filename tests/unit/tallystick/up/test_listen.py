"""What `up --listen` tells people, and what it refuses to."""

from pathlib import Path

import pytest

from contracts.terms.errors import Malformed
from tallystick.up.foreground import Ready
from tallystick.up.ports import checked_address
from tallystick.up.services import Addresses


@pytest.mark.parametrize("text", ["0.0.0.0", "224.0.0.1", "market.local", "::1", "", "1.2.3.4:80"])
def test_checked_address__none_that_others_can_be_told__is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="--listen"):
        checked_address(text)


def test_ready__others_reach_it__says_what_they_type_and_what_plain_http_is_for() -> None:
    where = Addresses("http://127.0.0.1:8420", "", "", "http://10.0.0.5:9000", "", "10.0.0.5")

    lines = Ready(1.0, where.shown_api, where.rpc, Path("/home"), where.listen).for_others()

    assert lines[0].endswith("tallystick provider start --market http://10.0.0.5:8420 --ask 1000")
    assert "private network" in lines[1]


def test_ready__on_loopback__says_nothing_about_others() -> None:
    where = Addresses("http://127.0.0.1:8420", "", "", "http://127.0.0.1:9000", "")

    assert Ready(1.0, where.shown_api, where.rpc, Path("/home")).for_others() == []
    assert where.shown_api == where.api
