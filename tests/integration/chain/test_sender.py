"""Writes happen once, whatever the chain or we forget; on a real anvil that is really killed."""

from functools import partial
from pathlib import Path

import pytest

from contracts.chain.connection import Receipt
from contracts.chain.deploy import DeploySettings, run
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused, WrongConfiguration
from contracts.terms.ids import Address, Digest
from tests.support.anvil import DeployedChain, deployed_chain

SOMEBODY = Address(bytes(19) + b"\x77")


async def _anchored(deployed: DeployedChain) -> list[bytes]:
    head = await deployed.chain.head()
    logs = await deployed.contracts.seals.events(0, head.number)
    return [log.args["root"] for log in logs if log.event == "Anchored"]


async def _anchor(deployed: DeployedChain, number: int) -> Receipt:
    root = Digest(bytes([number]) * 32)
    call = deployed.contracts.seals.anchor(root)
    return await deployed.senders["anchorer"].send(f"anchor:{number}", call)


async def _lose_blocks(deployed: DeployedChain) -> None:
    """The chain is killed before it stores what it has done."""
    await deployed.anvil.stop()
    deployed.anvil.forget()
    await deployed.anvil.start()


async def test_send__chain_killed_before_its_dump__same_bytes_again_and_one_event(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed:
        anchorer = deployed.senders["anchorer"]
        await deployed.anvil.save()
        await _anchor(deployed, 1)
        lost = await _anchor(deployed, 2)

        await _lose_blocks(deployed)
        assert await deployed.chain.nonce(anchorer.account) == 0, "the kill must have cost blocks"
        again = await _anchor(deployed, 2)

        assert again.transaction == lost.transaction
        assert await _anchored(deployed) == [b"\1" * 32, b"\2" * 32]


async def _redeploy(deployed: DeployedChain, folder: Path) -> None:
    settings = DeploySettings(
        rpc_url=deployed.anvil.url, keys=folder / "keys", contracts=folder / "deployment.json"
    )
    assert (await run(settings)).escrow == deployed.deployment.escrow


async def test_send__refused_by_the_contract__named_and_free_to_try_again(tmp_path: Path) -> None:
    async with deployed_chain(tmp_path) as deployed:
        relayer = deployed.senders["relayer"]
        call = deployed.contracts.token.faucet(SOMEBODY, BaseUnits(5))

        with pytest.raises(ContractRefused, match="NotMinter"):
            await relayer.send("faucet", call)
        await relayer.send("gift", None, value=7, to=SOMEBODY)

        assert await deployed.chain.balance(SOMEBODY) == 7


async def test_genesis__chain_is_started_again__is_the_same(tmp_path: Path) -> None:
    async with deployed_chain(tmp_path) as deployed:
        genesis = await deployed.chain.genesis()
        await deployed.anvil.save()
        for _ in range(6):  # of which one or the other shows a first block of its own
            await deployed.anvil.stop()
            await deployed.anvil.start()

            assert await deployed.chain.genesis() == genesis
            assert (await deployed.chain.block(0)).hash == genesis
        await _anchor(deployed, 1)


async def test_send__chain_made_anew_with_the_same_keys__gets_nothing_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed:
        anchorer = deployed.senders["anchorer"]
        await _anchor(deployed, 1)
        old = await deployed.chain.genesis()
        while await deployed.chain.genesis() == old:  # it is, if made anew within the same second
            await _lose_blocks(deployed)
        for sender in deployed.senders.values():
            await deployed.anvil.fund(deployed.chain, sender.account)

        for send in (anchorer.resend, partial(_redeploy, deployed, tmp_path)):
            with pytest.raises(WrongConfiguration, match="nothing of it is sent here"):
                await send()
        assert await deployed.chain.nonce(anchorer.account) == 0


async def test_deploy__file_lost_after_the_contracts_exist__same_addresses(tmp_path: Path) -> None:
    async with deployed_chain(tmp_path) as deployed:
        (tmp_path / "deployment.json").unlink()

        await _redeploy(deployed, tmp_path)

        assert await deployed.chain.nonce(deployed.senders["deployer"].account) == 4
        assert (tmp_path / "deployment.json").exists()
