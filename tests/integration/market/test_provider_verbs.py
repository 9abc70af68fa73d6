"""A provider who was paid on a real chain claims, and takes offer and stake back, by the verbs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.keys.store import save_wallet
from market.bodies.routes import GET_NETWORK
from tallystick.chains import NOTE, chain_name
from tallystick.provider.folder import ProviderFolder, keystore_in
from tallystick.sdk.client import MarketClient
from tests.integration.bad_input.servers import market_at_url
from tests.integration.bad_input.verbs import call
from tests.integration.market.on_chain import chain_world
from tests.integration.market.test_on_chain import matched_job, settled
from tests.support.history import make_session, make_wallet


def home_of(folder: Path, offer: Any) -> Path:
    """What Ann's agent left when it ended."""
    home = folder / "home" / "provider"
    save_wallet(keystore_in(home), make_wallet("ann"))
    (home / "agent.key").write_bytes(make_session("agent ann").secret)
    own = ProviderFolder(home)
    own.save_offer(offer)
    own.close()
    return home


@pytest.mark.timeout(240)
async def test_provider__paid_on_a_real_chain__claims_audits_and_takes_everything_back(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        maker.seal_step()
        maker.seal_step(last=True)
        await world.send(maker)
        await settled(world, maker)
        home = home_of(tmp_path, world.sign_offer("ann", 10**11))
        async with market_at_url(world) as url:
            async with MarketClient(url) as client:
                (home / NOTE).write_text(chain_name(await client.call(GET_NETWORK)))

            async def said(*words: str) -> dict[str, Any]:
                environment = {"TALLYSTICK_HOME": str(home.parent), "TALLYSTICK_MARKET": url}
                done = await asyncio.to_thread(call, [*words, "-o", "json"], environment)
                assert done.exit_code == 0, done
                answered: dict[str, Any] = json.loads(done.stdout)
                return answered

            would = await said("provider", "claim", "--dry-run")
            first, second = [await said("provider", "claim") for _ in range(2)]
            earned = str(maker.seals[-1].seal.vested)
            assert (would["by"], would["amount"]) == ("nobody", earned)
            assert (first["by"], first["amount"], first["claimed"]) == ("us", earned, earned)
            assert (second["by"], second["amount"]) == ("nobody", "0")

            back = await said("provider", "withdraw", "--stake", "all")
            again = await said("provider", "withdraw")
            status = await said("provider", "status")
            assert back["offer"] == world.offers["ann"].hex() and back["unbonding"] == back["asked"]
            assert again["offer"] is None and status["offers"] == []
            assert status["stake"]["active"] == status["stake"]["reserved"]

            await world.on.chain.request("evm_increaseTime", [61])
            taken = await said("provider", "withdraw", "--unbonded")
            assert (taken["taken"], taken["unbonding"]) == (back["asked"], "0")

            file = str(tmp_path / "job.tally")
            job = maker.spec.job().hex()
            exported = await said(
                *("audit", "export", job[:12], "--to", file, "--rpc", world.on.anvil.url)
            )
            assert exported["job"] == job and exported["num_bytes"] == Path(file).stat().st_size
