"""Where do peers listen? Where others of a private network can dial them, else on loopback."""

import pytest

from tallystick.provider.machine import LOOPBACK, listen_address

HERE, MARKET = "192.168.1.7", "http://market:8420"


@pytest.mark.parametrize(
    ("there", "own", "chosen"),
    [
        ("192.168.1.5", HERE, HERE),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("100.64.0.1", "100.100.3.4", "100.100.3.4"),  # an overlay network
        ("8.8.8.8", HERE, LOOPBACK),  # behind NAT, most likely: nobody could dial it
        ("8.8.8.8", "9.9.9.9", LOOPBACK),
        ("127.0.0.1", "127.0.0.1", LOOPBACK),
    ],
)
def test_listen_address__market_somewhere__is_reachable_where_others_are_near(
    there: str, own: str, chosen: str
) -> None:
    assert listen_address(MARKET, "", route=lambda url: (there, own) if url else None) == chosen


def test_listen_address__market_of_this_machine_that_others_reach__is_that_of_its_chain() -> None:
    routes = {MARKET: (LOOPBACK, LOOPBACK), "http://chain": ("192.168.1.5", "192.168.1.5")}

    assert listen_address(MARKET, "http://chain", route=routes.get) == "192.168.1.5"
