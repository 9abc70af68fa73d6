"""Postgres, Redis and anvil as values: no secret in argv, broken state repaired."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.errors import ServiceUnreachable
from tallystick.up.anvil import Anvil, repair, whole_dump
from tallystick.up.data_folder import DataFolder, open_data_folder
from tallystick.up.postgres import Postgres, Runner
from tallystick.up.processes import RUN_ID, UP_ID, scrubbed
from tallystick.up.redis_server import RedisServer, quoted
from tallystick.up.services import Addresses, Parts, environment_of, table
from tallystick.up.settings import UpSettings
from tallystick.up.spec import ServiceSpec, Step, check_order

WHOLE = json.dumps({"block": {"number": 1}}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return open_data_folder(tmp_path / "home with spaces")


def parts(folder: DataFolder, *, is_embedded: bool = True) -> Parts:
    ports = {"postgres": 1, "redis": 2, "anvil": 3, "gateway": 4, "api": 5}
    addresses = Addresses(
        "http://a", "postgresql://u:hidden@d", "redis://:hidden@r", "http://c", "f"
    )
    return Parts(
        folder,
        ports,
        addresses,
        Postgres(folder, Path("/bin"), Runner(), 1, {}) if is_embedded else None,
        RedisServer(folder, Path("/bin/redis-server"), 2) if is_embedded else None,
        Anvil(folder, Path("/bin/anvil"), 3) if is_embedded else None,
        UpSettings(home=folder.home),
    )


def test_table__embedded__is_in_order_and_starts_the_servers(folder: DataFolder) -> None:
    items = table(parts(folder))

    check_order(items)
    services = {item.name for item in items if isinstance(item, ServiceSpec)}
    assert services >= {"postgres", "redis", "anvil", "gateway", "api", "worker", "beat", "host"}


@pytest.mark.parametrize("blobs", ["", "s3://bucket/market"])
def test_environment__place_of_blobs__is_the_folder_or_what_is_said(
    folder: DataFolder, blobs: str
) -> None:
    said = replace(parts(folder), settings=UpSettings(home=folder.home, blobs=blobs))

    assert environment_of(said)["TALLYSTICK_BLOBS"] == (blobs or str(folder.blobs))


def test_table__outside_servers__starts_none_of_them(folder: DataFolder) -> None:
    items = table(parts(folder, is_embedded=False))

    check_order(items)
    services = {item.name for item in items if isinstance(item, ServiceSpec)}
    assert services.isdisjoint({"postgres", "redis", "anvil", "gateway"})
    assert {item.name for item in items if isinstance(item, Step)} == {
        *("postgres", "redis", "gateway", "migrate", "same-chain")
    }


def test_table__no_secret__in_any_command_line(folder: DataFolder) -> None:
    made = parts(folder)
    assert made.postgres and made.redis
    secrets = {made.postgres.password, made.redis.password, "hidden"}

    words = [word for item in table(made) for word in item.argv]

    assert not any(secret in word for secret in secrets for word in words)
    assert "hidden" not in repr(made.addresses)


def test_redis_configuration__path_with_spaces__is_quoted(folder: DataFolder) -> None:
    server = RedisServer(folder, Path("/bin/redis-server"), 7)

    lines = server.configuration().decode().splitlines()

    assert f'dir "{folder.redis}"' in lines and f"requirepass {server.password}" in lines
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_whole_dump__cut_off_or_unchanged__is_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    assert whole_dump(state, b"") is None

    state.write_bytes(WHOLE[:-1])
    assert whole_dump(state, b"") is None

    state.write_bytes(WHOLE)
    assert whole_dump(state, b"") == WHOLE
    assert whole_dump(state, WHOLE) is None


@pytest.mark.parametrize(
    ("found", "copied", "then"),
    [
        (None, WHOLE, WHOLE),
        (b"", WHOLE, WHOLE),
        (WHOLE[:7], WHOLE, WHOLE),
        (b"\xff", WHOLE, WHOLE),
        (WHOLE, b"{}", WHOLE),
        (b"", None, None),  # killed before the first dump: it begins anew
    ],
)
def test_repair__broken_state__is_replaced_by_the_copy_and_a_whole_one_stays(
    tmp_path: Path, found: bytes | None, copied: bytes | None, then: bytes | None
) -> None:
    state, copy = tmp_path / "state.json", tmp_path / "copy.json"
    for path, data in ((state, found), (copy, copied)):
        if data is not None:
            path.write_bytes(data)

    repair(state, copy)

    assert (state.read_bytes() if state.exists() else None) == then


def test_repair__broken_without_a_copy__is_an_error_and_keeps_the_bytes(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(WHOLE[:7])

    with pytest.raises(ServiceUnreachable, match="cut off"):
        repair(state, tmp_path / "copy.json")

    assert (tmp_path / "state.broken").read_bytes() == WHOLE[:7]


def test_scrubbed__pg_and_our_own__are_gone_but_for_an_operators() -> None:
    stays = {"PATH", "HOME", "HTTPS_PROXY", "no_proxy", "TALLYSTICK_CONFIRMATIONS"}
    given = dict.fromkeys({*stays, "PGPORT", "PGHOST", UP_ID, RUN_ID, "TALLYSTICK_BLOBS"}, "x")

    assert set(scrubbed(given)) == stays
