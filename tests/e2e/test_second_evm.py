"""On a node that is not anvil money, anchors, proofs and the audit file of a job mean the same.

`agreed` compares the escrow's events with its storage; the audit file is proved against a block's
hash, and its draws against the beacons that the node recorded.
"""

from pathlib import Path

import pytest

from contracts.keys.store import load_or_create_wallet
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, BaseUnits
from tallystick.sdk.escrow import until_quit
from tests.e2e.test_checked import JOB
from tests.support.anvil import FAST_TIMES, deployed_at, role_wallets
from tests.support.money_story import agreed, losses_of, start_all, tell
from tests.support.second_evm import CHAIN_ID, second_evm
from tests.support.stack import stack, verified

TOKENS = BaseUnits(1000 * BASE_UNITS_PER_TOKEN)
NAMES = ("ann", "bob", "cem")
pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
async def test_market__on_another_evm__checked_job_is_paid_and_its_audit_file_proved(
    tmp_path: Path,
) -> None:
    home = tmp_path / "market"
    wallets = role_wallets(home)
    names = ("poster.json", *(f"{name}/wallet.json" for name in NAMES))
    owners = [load_or_create_wallet(tmp_path / name).account for name in names]
    accounts = [*(wallet.account for wallet in wallets.values()), *owners]
    async with second_evm(tmp_path, accounts) as node:
        async with deployed_at(node.url, home, wallets, FAST_TIMES) as deployed:
            for owner in owners:  # the market gives nothing away on a chain that is not its own
                gift = deployed.contracts.token.faucet(owner, TOKENS)
                await deployed.senders["faucet"].send(owner.hex(), gift)
        async with stack(tmp_path, forked=True, rpc_url=node.url) as running:
            start_all(running, *NAMES)
            job = (await running.submit(**JOB)).job
            await running.settled(job, within=300)
            await until_quit(running.client, job)
            told = await agreed(running, job)
            found = await verified(running, job)

            assert found["verdict"] == "anchored" and found["ended"]
            assert found["chain_id"] == running.contracts.deployment.chain_id == CHAIN_ID
            assert not found["disagreements"]
            for owner in owners[1:]:
                shown, leaf = found["accounts"][owner.hex()], told.leaf(owner)
                assert int(shown["earned"]) == leaf.earned
                assert int(shown["held"]["claimed"]) == leaf.vested == leaf.earned > 0
            people = dict(zip(NAMES, owners[1:], strict=True))
            tell("second EVM", await losses_of(running, told, people))
