"""A history of three members, paid by the real contracts, and what a thief makes of such.

Everything is made once, on one anvil. `tests/property/test_audit_forgeries.py` has more forgeries.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.governance.claims import PayTree
from contracts.governance.pay import PayLeaf
from contracts.json_rpc import JsonRpc
from contracts.terms.ids import Digest
from tallystick.audit.export import SHIPS, export
from tests.support.anvil import DeployedChain, deployed_chain
from tests.support.audited import pins_of
from tests.support.audited_chain import LIMIT, STAKE, ChainMarket, job_on
from tests.support.forging import retold
from tests.support.history import JobMaker, make_wallet
from tests.support.offline import verify_here
from verification.audit.audit_file import AuditFile, verify


@dataclass(frozen=True)
class Made:
    """Files of the honest market, and of a coordinator that pays friends."""

    job: JobMaker
    file: AuditFile
    robbed: AuditFile


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return asyncio.run(_make(tmp_path_factory.mktemp("chain")))


async def _make(folder: Path) -> Made:
    async with deployed_chain(folder) as deployed, JsonRpc(deployed.anvil.url) as node:
        job, file = await _paid(deployed, node)
        return Made(job, file, await _robbed(deployed, node))


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


def exit_code(file: AuditFile, made: Made) -> tuple[int, str]:
    """What `audit verify` says to a reader who knows the honest contracts and the file's block."""
    pins = replace(pins_of(made.file), block=file.block.header.hash)
    code, said, complaint = verify_here(file.encoded(), pins=pins)
    return code, complaint or said


def test_verify__honest_file__exits_0_and_accounts_for_every_base_unit(made: Made) -> None:
    assert exit_code(made.file, made)[0] == 0

    verdict = verify(made.file.encoded(), SHIPS, pins=pins_of(made.file))
    seal = made.job.seals[-1].seal
    assert verdict.escrow is not None and verdict.disagreements == ()
    assert verdict.escrow.claimed == seal.vested == seal.earned
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


def test_verify__step_dropped_and_all_signed_again__exits_11(made: Made) -> None:
    told = tuple(retold(made.job, steps=5).items)

    code, words = exit_code(replace(made.file, items=told), made)

    assert (code, "anchor_chain/" in words) == (11, True)
