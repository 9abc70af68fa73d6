"""A history of three members and two epochs, settled by the real contracts, and its forgeries.

Everything is made once: one anvil, one deployment, one forger who deploys the same contracts again.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.chain.contracts import bind
from contracts.chain.deploy import DeploySettings, run
from contracts.chain.deployment import Deployment
from contracts.governance.settlement import EpochSettlement
from contracts.keys.store import load_or_create_wallet, save_wallet
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, EpochNumber
from tests.support.anvil import ROLES, SHORT_WINDOWS, DeployedChain, deployed_chain
from tests.support.fake_chain import SHIPS
from tests.support.forging import moved, retold, without_step
from tests.support.history import JobMaker, make_members, make_wallet
from tests.support.offline import verify_here
from tests.support.settling import ChainMarket
from verification.audit.audit_file import AuditFile, verify


@dataclass(frozen=True)
class Made:
    """Files of the honest market, of a market whose proposer robs, and of the forger."""

    job: JobMaker
    file: AuditFile
    anchor: Digest
    robbed: AuditFile
    forged: AuditFile
    settlement: bytes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return asyncio.run(_make(tmp_path_factory.mktemp("chain")))


async def _make(folder: Path) -> Made:
    async with deployed_chain(folder) as deployed:
        job, file = await _two_epochs(deployed)
        robbed = await _robbed(deployed, file)
        forged = await _forged(deployed, folder)
        return Made(
            job,
            file,
            file.snapshots[-1].header.hash,
            robbed,
            forged,
            deployed.deployment.settlement,
        )


async def _two_epochs(deployed: DeployedChain) -> tuple[JobMaker, AuditFile]:
    market = ChainMarket(deployed)
    early = ((JobMaker(name="early").spec.job(), 1, Digest(b"e" * 32)),)
    await market.anchor_entries(early)
    head = await deployed.chain.head()
    job, other = _maker(deployed, "audited", head.number), _maker(deployed, "other", head.number)
    for maker in (job, other):
        await market.open(maker)
    for maker in (job, other) * 3:
        maker.seal_step()
    await market.anchor()
    await market.settle()
    await market.snapshot(job)
    for number in range(3):
        job.seal_step(last=number == 2)
        other.seal_step()
    await market.anchor()
    await market.record()
    await market.settle()
    await market.claim(job.members[0].wallet.account)
    await market.close(job)
    await market.snapshot(job)
    return job, await market.file(job)


def _maker(deployed: DeployedChain, name: str, block: int, seed: str = "") -> JobMaker:
    return JobMaker(
        name=name,
        domain=deployed.deployment.domain,
        anchorer=deployed.senders["anchorer"].account,
        opening_block=block,
        poster=make_wallet(f"poster of {name}"),
        members=make_members(seed=seed),
    )


async def _robbed(deployed: DeployedChain, before: AuditFile) -> AuditFile:
    """A third epoch, in which the proposer moves a payout; the contracts cannot know."""
    market = ChainMarket(deployed, num_sent=1000)
    market.settlements.append(replace(before.snapshots[-1].settlement, epoch=EpochNumber(2)))
    robbed = _maker(deployed, "robbed", (await deployed.chain.head()).number)
    await market.open(robbed)
    for _ in range(3):
        robbed.seal_step()
    await market.anchor()
    giver, taker = (member.wallet.account for member in robbed.members[:2])

    def rob(settled: EpochSettlement) -> EpochSettlement:
        return moved(settled, robbed.spec.job(), giver, taker, 1)

    await market.settle(change=rob)
    await market.snapshot(robbed)
    return await market.file(robbed)


async def _forged(deployed: DeployedChain, folder: Path) -> AuditFile:
    """The same contracts deployed again by a forger, with a history that fits them."""
    deployment = await _deployed_again(deployed, folder / "forger")
    mine = replace(deployed, deployment=deployment, contracts=bind(deployed.chain, deployment))
    market = ChainMarket(mine, num_sent=2000)
    head = await deployed.chain.head()
    job = _maker(mine, "audited", head.number)
    await market.open(job)
    for number in range(3):
        job.seal_step(last=number == 2)
    await market.anchor()
    await market.record()
    await market.settle()
    await market.snapshot(job)
    return await market.file(job)


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
            chain_parameters=SHORT_WINDOWS,
        )
    )


def exit_code(file: AuditFile, made: Made) -> tuple[int, str]:
    """What `audit verify` says to a reader who knows the honest contract and the file's block."""
    anchor = file.snapshots[-1].header.hash
    code, _, complaint = verify_here(file.encoded(), anchor=anchor, settlement=made.settlement)
    return code, complaint


def with_items(made: Made, items: list[Kept]) -> AuditFile:
    return replace(made.file, items=tuple(items))


def test_verify__honest_file__exits_0_and_accounts_for_every_base_unit(made: Made) -> None:
    assert exit_code(made.file, made) == (0, "")

    verdict = verify(made.file.encoded(), SHIPS, anchor=made.anchor)
    escrow = verdict.escrow
    assert escrow.deposited == escrow.paid + escrow.refunded + escrow.remaining
    assert escrow.paid == made.job.seals[-1].seal.vested
    assert verdict.checked["snapshots"] == 2


def test_verify__payout_moved_in_the_file__exits_11(made: Made) -> None:
    newest = made.file.snapshots[-1]
    giver, taker = (member.wallet.account for member in made.job.members[:2])
    forged = moved(newest.settlement, made.job.spec.job(), giver, taker, 1)
    snapshots = (*made.file.snapshots[:-1], replace(newest, settlement=forged))

    code, words = exit_code(replace(made.file, snapshots=snapshots), made)

    assert (code, "snapshots/1/settlement" in words) == (11, True)


def test_verify__payout_moved_by_the_proposer_on_chain__exits_11(made: Made) -> None:
    code, words = exit_code(made.robbed, made)

    assert (code, "what the job's seal says" in words) == (11, True)


def test_verify__step_dropped_and_resealed_with_the_coordinators_key__exits_11(made: Made) -> None:
    code, words = exit_code(with_items(made, without_step(made.job, 3)), made)

    assert (code, "items/" in words) == (11, True)


def test_verify__step_dropped_and_all_signed_again__exits_11(made: Made) -> None:
    code, words = exit_code(with_items(made, retold(made.job, steps=5).items), made)

    assert (code, "lane/" in words) == (11, True)


def test_verify__member_dropped_and_all_signed_again__exits_11(made: Made) -> None:
    two = retold(made.job, steps=6, members=made.job.members[:2])

    code, words = exit_code(with_items(made, two.items), made)

    assert (code, "lane/" in words) == (11, True)


def test_verify__same_contracts_deployed_again_by_the_forger__exits_11(made: Made) -> None:
    fits_itself = verify(made.forged.encoded(), SHIPS)
    assert fits_itself.escrow.paid > 0

    code, words = exit_code(made.forged, made)

    assert (code, "chain/settlement" in words) == (11, True)


def test_verify__forgers_file_that_names_the_true_contract__exits_11(made: Made) -> None:
    code, words = exit_code(replace(made.forged, domain=made.file.domain), made)

    assert (code, "code/" in words) == (11, True)
