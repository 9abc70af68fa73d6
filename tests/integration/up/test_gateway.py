"""The gateway in front of a real anvil: what passes, what does not, and how it says so."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from contracts.terms.errors import WrongConfiguration
from tallystick.up.gateway import ALLOWED, MAX_BODY_BYTES
from tallystick.up.settings import UpSettings
from tallystick.up.stack import Services
from tests.support.patience import patience
from tests.support.stack import kill_and_see, restarted

LISTEN = "127.0.0.2"  # stands for an address that other machines reach

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> UpSettings:
    return UpSettings(home=tmp_path_factory.mktemp("gateway") / "home", listen_address=LISTEN)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(home: UpSettings) -> AsyncIterator[Services]:
    async with Services(home, only=("anvil", "gateway")) as started:
        yield started


async def post(services: Services, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=patience(10)) as client:
        return await client.post(services.addresses.rpc, content=body)


def request(method: str, *parameters: object, number: int | str = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": list(parameters)}


async def ask(services: Services, value: object) -> tuple[int, object]:
    answer = await post(services, json.dumps(value).encode())
    return answer.status_code, answer.json()


async def test_gateway__others_reach_it__answers_there_and_on_loopback(services: Services) -> None:
    assert services.addresses.rpc == f"http://{LISTEN}:{services.ports['gateway']}"
    for host in (LISTEN, "127.0.0.1"):
        async with httpx.AsyncClient(trust_env=False, timeout=patience(10)) as client:
            url = services.addresses.rpc.replace(LISTEN, host)
            answer = await client.post(url, json=request("eth_chainId"))
        assert answer.json()["result"] == hex(31337)


async def test_listen__address_of_another_machine__is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    settings = UpSettings(home=tmp_path / "home", listen_address="203.0.113.7")

    with pytest.raises(WrongConfiguration, match=r"this machine has no such address"):
        await Services(settings, only=("anvil", "gateway")).start()


async def test_gateway__listed_methods__are_all_known_to_the_chain(services: Services) -> None:
    calls = [request(method, number=method) for method in sorted(ALLOWED)]

    status, answers = await ask(services, calls)

    assert status == 200 and isinstance(answers, list)
    assert [answer["id"] for answer in answers] == sorted(ALLOWED)
    codes = {answer["id"]: answer.get("error", {}).get("code") for answer in answers}
    assert -32601 not in codes.values(), codes


async def test_gateway__oversized_body__is_too_large(services: Services) -> None:
    answer = await post(services, b" " * (MAX_BODY_BYTES + 1))

    assert answer.status_code == 413
    assert answer.json()["error"]["data"] == {"code": "too_large"}


async def test_gateway__get__is_not_allowed(services: Services) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(services.addresses.rpc)).status_code == 405


async def test_gateway__chain_is_killed__says_unavailable_and_recovers(services: Services) -> None:
    killed = services.identity("anvil")
    await kill_and_see(killed)
    statuses = set()
    while services.identity("anvil") == killed:
        status, answer = await ask(services, request("eth_chainId"))
        statuses.add(status)
        assert status == 200 or "unreachable" in json.dumps(answer)

    await restarted(services.folder, "anvil", killed)

    assert statuses <= {200, 503}
    assert await ask(services, request("eth_chainId")) == (
        200,
        {"jsonrpc": "2.0", "id": 1, "result": hex(31337)},
    )
