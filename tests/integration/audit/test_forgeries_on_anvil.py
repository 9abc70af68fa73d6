"""A history of three members, paid by the real contracts, and its forgeries.

Everything is made once: one anvil, one deployment, one forger who deploys the same contracts again.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.chain.contracts import bind
from contracts.chain.deploy import DeploySettings, run
from contracts.chain.deployment import Deployment
from contracts.governance.claims import PayTree
from contracts.governance.pay import PayLeaf
from contracts.json_rpc import JsonRpc
from contracts.keys.store import load_or_create_wallet, save_wallet
from contracts.terms.history import Kept
from contracts.terms.ids import Digest
from tallystick.audit.export import SHIPS, export
from tests.support.anvil import FAST_TIMES, ROLES, DeployedChain, deployed_chain
from tests.support.audited import pins_of
from tests.support.audited_chain import LIMIT, STAKE, ChainMarket, job_on
from tests.support.forging import retold, without_step
from tests.support.history import JobMaker, make_wallet
from tests.support.offline import verify_here
from verification.audit.audit_file import AuditFile, verify


@dataclass(frozen=True)
class Made:
    """Files of the honest market, of a coordinator that pays friends, and of the forger."""

    job: JobMaker
    file: AuditFile
    robbed: AuditFile
    forged: AuditFile


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return asyncio.run(_make(tmp_path_factory.mktemp("chain")))


async def _make(folder: Path) -> Made:
    async with deployed_chain(folder) as deployed, JsonRpc(deployed.anvil.url) as node:
        job, file = await _paid(deployed, node)
        return Made(job, file, await _robbed(deployed, node), await _forged(deployed, node, folder))


async def _paid(deployed: DeployedChain, node: JsonRpc) -> tuple[JobMaker, AuditFile]:
    market = ChainMarket(deployed)
    early = ((JobMaker(name="early").spec.job(), 1, Digest(b"e" * 32)),)
    await market.anchor_entries(early)
    head = await deployed.chain.head()
    job, other = (job_on(deployed, name, head.number) for name in ("audited", "other"))
    for maker in (job, other):
        await market.open(maker)
    for maker in (job, other) * 3:
        maker.seal_step()
    await market.anchor()
    await market.claim_all(job)
    for number in range(3):
        job.seal_step(last=number == 2)
        other.seal_step()
    await market.anchor()
    await market.record()
    await market.claim_all(job)
    return job, await export(market, node, job.spec.job())


async def _robbed(deployed: DeployedChain, node: JsonRpc) -> AuditFile:
    """A coordinator signs a seal that nobody derives: a member gets its limit, and a stranger."""
    market = ChainMarket(deployed, num_sent=1000)
    job = job_on(deployed, "robbed", (await deployed.chain.head()).number)
    friend = make_wallet("friend").account
    await market.open(job)
    await market.grant(job, [friend])
    seal = job.seal_step().seal
    await market.anchor()
    await market.record()
    accounts = sorted([friend, job.members[0].wallet.account])
    pay = tuple(PayLeaf(account, LIMIT, LIMIT) for account in accounts)
    false = seal.model_copy(update={"pay_root": PayTree(pay).root})
    await market.claim_all(job, false, pay)
    return await export(market, node, job.spec.job())


async def _forged(deployed: DeployedChain, node: JsonRpc, folder: Path) -> AuditFile:
    """The same contracts deployed again by a forger, with a history that fits them."""
    deployment = await _deployed_again(deployed, folder / "forger")
    mine = replace(deployed, deployment=deployment, contracts=bind(deployed.chain, deployment))
    market = ChainMarket(mine, num_sent=2000)
    job = job_on(mine, "audited", (await deployed.chain.head()).number)
    await market.open(job)
    for number in range(3):
        job.seal_step(last=number == 2)
    await market.anchor()
    await market.record()
    await market.claim_all(job)
    return await export(market, node, job.spec.job())


async def _deployed_again(deployed: DeployedChain, folder: Path) -> Deployment:
    keys = folder / "keys"
    old = folder.parent / "keys"
    for role in ROLES:
        if role != "deployer":  # the same powers, so that the same senders serve
            save_wallet(keys / f"{role}.json", load_or_create_wallet(old / f"{role}.json"))
    deployer = load_or_create_wallet(keys / "deployer.json")
    await deployed.anvil.fund(deployed.chain, deployer.account)
    return await run(
        DeploySettings(
            rpc_url=deployed.anvil.url,
            keys=keys,
            contracts=folder / "deployment.json",
            escrow_times=FAST_TIMES,
        )
    )


def exit_code(file: AuditFile, made: Made) -> tuple[int, str]:
    """What `audit verify` says to a reader who knows the honest contracts and the file's block."""
    pins = replace(pins_of(made.file), block=file.block.header.hash)
    code, said, complaint = verify_here(file.encoded(), pins=pins)
    return code, complaint or said


def with_items(made: Made, items: list[Kept]) -> AuditFile:
    return replace(made.file, items=tuple(items))


def test_verify__honest_file__exits_0_and_accounts_for_every_base_unit(made: Made) -> None:
    assert exit_code(made.file, made)[0] == 0

    verdict = verify(made.file.encoded(), SHIPS, pins=pins_of(made.file))
    assert verdict.escrow is not None and verdict.disagreements == ()
    assert (
        verdict.escrow.claimed == made.job.seals[-1].seal.vested == made.job.seals[-1].seal.earned
    )
    assert (verdict.escrow.limits, verdict.escrow.others) == (3 * LIMIT, 0)
    assert verdict.escrow.funded == made.job.spec.budget
    for each in verdict.accounts.values():
        assert each.channel is not None
        assert (each.channel.stake, each.channel.claimed) == (STAKE, each.vested)


def test_verify__coordinator_paid_by_a_seal_of_its_own__exits_11_and_names_who(made: Made) -> None:
    code, said = exit_code(made.robbed, made)

    assert code == 11
    assert "was paid 10, but its seals vest 0" in said
    assert "was shown to have earned 10, but its seals say 0.2" in said
    verdict = verify(made.robbed.encoded(), SHIPS)
    assert verdict.escrow is not None and verdict.escrow.others == LIMIT  # the friend's


def test_verify__step_dropped_and_resealed_with_the_coordinators_key__exits_11(made: Made) -> None:
    code, words = exit_code(with_items(made, without_step(made.job, 3)), made)

    assert (code, "items/" in words) == (11, True)


def test_verify__step_dropped_and_all_signed_again__exits_11(made: Made) -> None:
    code, words = exit_code(with_items(made, retold(made.job, steps=5).items), made)

    assert (code, "anchor_chain/" in words) == (11, True)


def test_verify__member_dropped_and_all_signed_again__exits_11(made: Made) -> None:
    two = retold(made.job, steps=6, members=made.job.members[:2])

    code, words = exit_code(with_items(made, two.items), made)

    assert (code, "anchor_chain/" in words) == (11, True)


def test_verify__same_contracts_deployed_again_by_the_forger__exits_11(made: Made) -> None:
    assert verify(made.forged.encoded(), SHIPS, pins=pins_of(made.forged)).anchored  # by himself

    code, words = exit_code(made.forged, made)

    assert (code, "chain/escrow" in words) == (11, True)


def test_verify__forgers_file_that_names_the_true_contracts__exits_11(made: Made) -> None:
    file = replace(made.forged, domain=made.file.domain, seals=made.file.seals)

    code, words = exit_code(file, made)

    assert (code, "code/" in words) == (11, True)
