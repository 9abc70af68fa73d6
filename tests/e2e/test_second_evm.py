"""On a node that is not anvil money, anchors, proofs and the audit file of a job mean the same."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.chain.connection import Block
from contracts.chain.layout import shipped
from contracts.governance.anchor_chain import AnchoredBatch
from contracts.governance.claims import PayTree
from contracts.governance.escrow import BURN
from contracts.governance.pay import PayLeaf
from contracts.keys.store import load_or_create_wallet
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import ContractRefused
from contracts.terms.escrow_messages import Bond, Close
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.typed_data import Domain
from tallystick.sdk.escrow import until_quit
from tests.e2e.test_checked import JOB
from tests.integration.chain.test_escrow import (
    ANN,
    ANNOUNCE,
    BOB,
    BUDGET,
    DETAILS,
    EXECUTE,
    LIAR,
    MARGIN,
    OTHERS,
    POSTER,
    TAIL,
    Money,
    granted,
    opened,
)
from tests.support.anvil import FAST_TIMES, deployed_at, role_wallets
from tests.support.money_story import agreed, losses_of, start_all, tell
from tests.support.second_evm import CHAIN_ID, SecondEvm, second_evm
from tests.support.stack import stack, verified
from verification.audit.chain_proof import (
    SHIPPED_AS,
    check_contracts,
    check_wiring,
    read_facts,
    wanted_places,
)
from verification.audit.collecting import read_anchor_chain, read_code, take_proof

TIMES = {"margin": MARGIN, "announce": ANNOUNCE, "execute": EXECUTE, "tail": TAIL}
TOKENS = BaseUnits(1000 * BASE_UNITS_PER_TOKEN)
NAMES = ("ann", "bob", "cem")
pytestmark = pytest.mark.nightly


@dataclass
class SecondMoney(Money):
    """Money on the second node, whose clock is ours."""

    node: SecondEvm = field(kw_only=True)

    async def wait(self, seconds: int) -> None:
        """See `Money.wait`."""
        await self.node.pass_time(seconds)


@asynccontextmanager
async def second_money(folder: Path) -> AsyncIterator[SecondMoney]:
    """All contracts, deployed as by `tallystick deploy`; the poster has its budget in tokens."""
    wallets = role_wallets(folder)
    accounts = [wallet.account for wallet in wallets.values()]
    async with (
        second_evm(folder, accounts) as node,
        deployed_at(node.url, folder, wallets, TIMES) as deployed,
    ):
        contracts, senders = deployed.contracts, deployed.senders
        domain = Domain(deployed.deployment.chain_id, contracts.escrow.address)
        for name, account in (("a", POSTER.account), ("b", senders["relayer"].account)):
            await senders["faucet"].send(name, contracts.token.faucet(account, BUDGET))
        approve = contracts.token.approve(contracts.escrow.address, BUDGET)
        await senders["relayer"].send("approve", approve)
        yield SecondMoney(deployed, contracts.escrow, domain, node=node)


def pay_tree() -> PayTree:
    """Three members and 300 more: two subtrees."""
    pay = [(ANN.account, 500, 300), (BOB.account, 9999, 9500), (LIAR.account, 800, 0)]
    pay += [(account, 900, 600) for account in OTHERS]
    leaves = [PayLeaf(who, BaseUnits(earned), BaseUnits(vested)) for who, earned, vested in pay]
    return PayTree(tuple(sorted(leaves, key=lambda leaf: leaf.account)))


async def check_proof(it: SecondMoney, job: JobId, accounts: list[Address], at: Block) -> None:
    """Prove by the block's hash alone what the events told, and that the code is ours."""
    deployment = it.deployed.deployment
    anchorer = it.deployed.senders["anchorer"].account
    ships = {name: shipped(artifact) for name, artifact in SHIPPED_AS.items()}
    addresses = {"escrow": deployment.escrow, "seals": deployment.seals}
    places = wanted_places(ships, job, anchorer, accounts)
    proof = await take_proof(it.node.rpc, block=at.number, addresses=addresses, places=places)

    assert proof.header.hash == at.hash and proof.contracts is not None
    states = check_contracts(proof.header, proof.contracts, addresses, "proofs")
    code = await read_code(it.node.rpc, addresses, at.number)
    assert {name: keccak(each) for name, each in code.items()} == {
        name: state.code_hash for name, state in states.items()
    }
    wiring = check_wiring(ships, code, deployment.domain, deployment.seals)
    assert wiring.times == await it.escrow.times(at)
    facts = read_facts(proof.contracts, states, places, "proofs")
    assert facts.channels == {each: it.known.channels[job, each] for each in accounts}
    budget = it.known.budgets[job]
    assert (facts.job["funded"], facts.job["committed"]) == (budget.funded, budget.committed)
    anchor_chain = await it.deployed.contracts.seals.anchor_chain(anchorer, at)
    assert Digest(facts.anchor_chain["hash"].to_bytes(32, "big")) == anchor_chain.hash


@pytest.mark.timeout(600)
async def test_job__on_another_evm__events_tell_all_and_one_block_proves_it(
    tmp_path: Path,
) -> None:
    async with second_money(tmp_path) as it:
        header = await opened(it)
        job, escrow = header.job(), it.escrow
        members = (ANN, BOB, LIAR)
        await it.send(*(escrow.deposit(each.account, BaseUnits(1000)) for each in members))
        by = await it.by()
        bonds = [
            each.sign(Bond(job=job, account=each.account, stake=BaseUnits(700), by=by), it.domain)
            for each in members
        ]
        await it.send(escrow.bond_many(job, bonds))
        tree = pay_tree()
        last = tree.subtrees()[-1]  # a small one, as this node is slow
        others = {leaf.account for leaf in last.leaves} - {each.account for each in members}
        accounts = [each.account for each in members] + sorted(others)
        await granted(it, header, [(account, 9000) for account in accounts])
        first = await it.deployed.chain.head()

        seal = it.seal(job, tree)
        proofs = [tree.prove(each.account) for each in members]
        await it.send(*(escrow.claim(header, DETAILS, seal, *proof) for proof in proofs))
        assert last.path.siblings
        await it.send(escrow.claim_all(header, DETAILS, seal, last))
        assert await it.balance(ANN.account) == 300 + 300
        assert await it.balance(BOB.account) == 300 + 9000
        assert {await it.balance(account) for account in others} == {600}
        forged = it.seal(job, PayTree(tree.leaves[1:]))
        with pytest.raises(ContractRefused):
            await it.send(escrow.claim(header, DETAILS, forged, *tree.prove(BOB.account)))

        await it.send(escrow.announce(job, LIAR.account, BaseUnits(700), DETAILS), role="slasher")
        await it.wait(ANNOUNCE)
        await it.send(escrow.burn(job, LIAR.account), role="slasher")
        assert await it.balance(BURN) == 700
        close = POSTER.sign(Close(job=job, by=await it.by()), it.domain)
        await it.send(escrow.close(header, close))
        await check_proof(it, job, accounts, await it.deployed.chain.head())

        await it.wait(TAIL)
        await it.send(escrow.release(job, accounts), escrow.reclaim(header, BUDGET))
        kept = 500 + 9000 + 800 + 900 * len(others)  # what was shown as earned
        assert await it.balance(POSTER.account) == BUDGET - kept
        old = await escrow.channels([(job, ANN.account)], first)
        assert (old[job, ANN.account].claimed, old[job, ANN.account].stake) == (0, 700)


@pytest.mark.timeout(600)
async def test_anchor__on_another_evm__beacons_are_the_hashes_of_their_blocks(
    tmp_path: Path,
) -> None:
    async with second_money(tmp_path) as it:
        seals, chain = it.deployed.contracts.seals, it.deployed.chain
        sender = it.deployed.senders["anchorer"]
        roots = [Digest(keccak(bytes([number]))) for number in range(3)]
        receipts = [await sender.send(f"anchor:{root.hex()}", seals.anchor(root)) for root in roots]
        await it.deployed.senders["relayer"].send("record", seals.record(sender.account))

        head = await chain.head()
        batches = await read_anchor_chain(
            it.node.rpc, seals.address, sender.account, first_block=0, last_block=head.number
        )
        assert batches == [
            AnchoredBatch(root, receipt.block, receipt.block_hash)
            for root, receipt in zip(roots, receipts, strict=True)
        ]
        assert await seals.pending_block(sender.account, head) == 0
        assert (await seals.anchor_chain(sender.account, head)).count == len(roots)
        assert await chain.next_time() >= head.timestamp


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
