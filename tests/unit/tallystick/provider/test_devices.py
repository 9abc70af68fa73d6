"""Is what is offered what computes, on machines with and without a second kind of device?"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.provider.agent import Agent, Ask
from tallystick.provider.devices import check_class, fits, resolve
from tallystick.provider.folder import ProviderFolder
from tallystick.provider.outside import OutsideSettings
from tallystick.provider.peer import PeerSettings
from tallystick.sdk.client import MarketClient
from tests.support.history import make_session, make_wallet

CLASSES = {"cpu": "cpu/x86_64/torch-2", "cuda:0": "cuda/A/torch-2", "cuda:1": "cuda/B/torch-2"}
"""An emulated machine: its devices, and what the probe says of each."""


@pytest.mark.parametrize(
    ("wanted", "num_cuda", "found"),
    [
        ("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"), ("cuda:1", 2, "cuda:1"),
    ],
)  # fmt: skip
def test_resolve__wish__names_one_device(wanted: str, num_cuda: int, found: str) -> None:
    assert resolve(wanted, num_cuda) == found
    assert fits(found, wanted)


@pytest.mark.parametrize(("wanted", "num_cuda"), [("cuda", 0), ("cuda:2", 2), ("tpu", 1)])
def test_resolve__no_such_device__is_refused(wanted: str, num_cuda: int) -> None:
    with pytest.raises(WrongConfiguration, match=f"--device {wanted}"):
        resolve(wanted, num_cuda)


def environment_of(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """Settings that an agent's processes would read: name to device."""
    for name, value in agent.environment.items():
        monkeypatch.setenv(name, value)
    return {"peer": PeerSettings().device, "auditor": OutsideSettings().device}


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cuda", "cuda:1"])
async def test_agent__machine_with_two_gpus__computes_on_the_device_whose_class_it_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("TALLYSTICK_PEER_DEVICE", "cpu")  # left from before: it decides nothing
    device, folder = resolve(wanted, 2), ProviderFolder(tmp_path)
    ask = Ask(1, 0, CLASSES[device], 2**30, 1, 1, 1, timedelta(days=1), device)  # type: ignore[arg-type]
    async with MarketClient("http://127.0.0.1:1") as client:
        agent = Agent(
            client, folder, make_wallet("ann"), make_session("agent"), ask, (),
            {"TALLYSTICK_PEER_DEVICE": "cpu"}, print,
        )  # fmt: skip
        offer = agent._new_offer(0)
    folder.close()

    used = environment_of(agent, monkeypatch)
    assert {CLASSES[each] for each in used.values()} == {offer.device_class}
    check_class(offer.device_class, used["peer"])


def test_check_class__peer_on_another_kind_of_device_than_its_lease__does_not_begin() -> None:
    with pytest.raises(WrongConfiguration, match="would compute on cpu"):
        check_class(CLASSES["cuda:0"], "cpu")
    check_class("a class of a test", "cpu")
