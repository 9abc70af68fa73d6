"""The contracts over JSON-RPC: `market.service.ports.Chain` on the wrappers of contracts.chain.

Each role has a sender of its own, so one account is one nonce sequence; who writes runs in one
process at a time (queue `chain`, under an advisory lock). Reads are pinned to one block.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.chain.connection import Block, Call, ChainConnection, Log
from contracts.chain.contracts import Contracts
from contracts.chain.deployment import NAMES
from contracts.chain.layout import shipped
from contracts.chain.proofs import Header
from contracts.chain.sender import Sender
from contracts.chain.wrappers.settlement import EpochState, Statement
from contracts.governance.pay import PayLeaf
from contracts.governance.settlement import AccountPay
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.merkle import Proof, SumNode
from contracts.terms.messages import JobSpec, LeaseAccept
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.domain.slashing import Slash
from market.service.ports import (
    AccountNow,
    Audited,
    CaseNow,
    ChainBlock,
    ChainEvent,
    CloseProof,
    EpochNow,
    JobNow,
    Network,
    PayOrder,
    StakeNow,
    Totals,
)
from verification.audit.collecting import FindSettlement, take_snapshot
from verification.audit.snapshots import SHIPPED_AS, Snapshot, wanted_places

log = logging.getLogger(__name__)
TOKEN_VERSION = "1"  # OpenZeppelin's ERC20Permit
SETTLING_SECONDS = 2.0  # until a block of the embedded chain is in its state file for certain


@dataclass(frozen=True)
class Confirming:
    """When a block counts: enough blocks on top, or, on an embedded chain, old enough."""

    confirmations: int  # 1: the block itself
    settling_seconds: float


class RpcChain:
    """`Chain` over an RPC endpoint. Reads may be concurrent, writes of one role may not."""

    def __init__(
        self,
        contracts: Contracts,
        *,
        anchorer: Address,
        rpc_url: str,
        confirming: Confirming,
        senders: Mapping[str, Sender] | None = None,
        mine: ChainConnection | None = None,
    ) -> None:
        self._contracts, self._chain = contracts, contracts.chain
        self._anchorer, self._rpc_url = anchorer, rpc_url
        self._confirming, self._senders, self._mine = confirming, senders or {}, mine
        self._fixed: tuple[Digest, str, str, int, Digest] | None = None  # first block and token
        self._all_ran_at: Digest | None = None  # the head in which all that was sent had run
        self._num_asked = 0  # how often somebody asked for a sender

    @property
    def domain(self) -> Domain:
        """See `Chain.domain`."""
        return self._contracts.deployment.domain

    @property
    def anchorer(self) -> Address:
        """See `Chain.anchorer`."""
        return self._anchorer

    # -------------------------------------------------------------------------------------- reads

    async def network(self) -> Network:
        """See `Chain.network`."""
        deployment = self._contracts.deployment
        if self._fixed is None:
            await self._chain.need_chain(deployment.chain_id)
        at = await self._chain.head()
        if self._fixed is None:
            token, genesis = self._contracts.token, await self._chain.genesis()
            self._fixed = (genesis, *await token.label(at), await token.domain_separator(at))
        genesis, name, symbol, decimals, separator = self._fixed
        return Network(
            genesis=genesis,
            rpc_url=self._rpc_url,
            embedded=self._mine is not None,
            contracts={each: getattr(deployment, each) for each in NAMES},
            deployed_block=deployment.block,
            token_name=name,
            token_version=TOKEN_VERSION,
            token_symbol=symbol,
            token_decimals=decimals,
            token_separator=separator,
            parameters=await self._contracts.parameters.values(at),
        )

    async def head(self) -> ChainBlock:
        """See `Chain.head`."""
        return _block(await self._chain.head())

    async def heads(self) -> tuple[ChainBlock, ChainBlock]:
        """See `Chain.heads`."""
        newest = await self._chain.head()
        return _block(newest), _block(await self._settled(newest))

    async def _settled(self, newest: Block) -> Block:
        on_top = self._confirming.confirmations - 1
        block = await self._chain.block(max(0, newest.number - on_top)) if on_top else newest
        old_enough = time.time() - self._confirming.settling_seconds
        while self._confirming.settling_seconds and block.timestamp > old_enough and block.number:
            block = await self._chain.block(block.number - 1)
        return block

    async def block(self, number: int) -> ChainBlock | None:
        """See `Chain.block`."""
        try:
            return _block(await self._chain.block(number))
        except errors.ChainForgot:
            return None

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        """See `Chain.events`."""
        names = {getattr(self._contracts.deployment, name): name for name in NAMES}
        return [_event(log, names) for log in await self._contracts.events(first, last)]

    async def account(self, account: Address) -> AccountNow:
        """See `Chain.account`."""
        at, of = await self._chain.head(), self._contracts
        stake = await of.stakes.stake(account, at)
        return AccountNow(
            gas=await self._chain.balance(account),
            token=await of.token.balance(account, at),
            permit_nonce=await of.token.permit_nonce(account, at),
            claimed=await of.settlement.claimed(account, at),
            stake=StakeNow(stake.active, stake.reserved, stake.unbonding),
            block=at.number,
        )

    async def stake_of(self, account: Address) -> tuple[int, StakeNow]:
        """See `Chain.stake_of`."""
        at = await self._chain.head()
        stake = await self._contracts.stakes.stake(account, at)
        return at.number, StakeNow(stake.active, stake.reserved, stake.unbonding)

    async def stakes(
        self, accounts: Sequence[Address]
    ) -> tuple[ChainBlock, Mapping[Address, StakeNow]]:
        """See `Chain.stakes`."""
        _, block = await self.heads()
        at, read = Block(block.number, block.hash, block.timestamp), self._contracts.stakes.stake
        found = {account: await read(account, at) for account in accounts}
        return block, {
            account: StakeNow(stake.active, stake.reserved, stake.unbonding)
            for account, stake in found.items()
        }

    async def slashable(self, job: JobId, account: Address) -> BaseUnits:
        """See `Chain.slashable`."""
        return await self._contracts.stakes.slashable(job, account, await self._chain.head())

    async def slash_case(self, case: int) -> CaseNow | None:
        """See `Chain.slash_case`."""
        found = await self._contracts.stakes.case(case, await self._chain.head())
        return None if found is None else CaseNow(found.executable_at, found.executable_until)

    async def job(self, job: JobId) -> JobNow:
        """See `Chain.job`."""
        at = await self._chain.head()
        funds = await self._contracts.escrow.funds(job, at)
        closing = await self._contracts.escrow.closing(job, at)
        return JobNow(
            deposited=funds.deposited,
            debited=funds.debited,
            state=funds.phase.name.lower(),
            seals=closing.seals,
            earned=closing.earned,
            due=closing.due,
            ends_at=closing.ends_at,
            refundable_at=closing.refundable_at,
            kept_open=closing.kept_open,
        )

    async def newest_epoch(self) -> EpochNow:
        """See `Chain.newest_epoch`."""
        found = await self._contracts.settlement.newest(await self._chain.head())
        booked = found.stored in (EpochState.FINAL, EpochState.REJECTED, EpochState.NONE)
        return EpochNow(found.number, found.root, booked, found.ends_at, found.next_at)

    async def totals(self) -> Totals:
        """See `Chain.totals`."""
        found = await self._contracts.settlement.totals(await self._chain.head())
        return Totals(found.funded, found.paid)

    async def snapshot(
        self, audited: Audited, find: FindSettlement, *, block: int, before: Header | None
    ) -> Snapshot:
        """See `Chain.snapshot`."""
        ships = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}
        return await take_snapshot(
            self._chain,
            find,
            block=block,
            addresses={name: getattr(self._contracts.deployment, name) for name in SHIPPED_AS},
            places=wanted_places(ships, audited.job, audited.anchorer, audited.accounts),
            before=before,
        )

    # ------------------------------------------------------------------------------------- writes

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """See `Chain.open_job`."""
        call = self._contracts.escrow.open_with_permit(
            spec, permit_deadline=permit_deadline, permit=permit
        )
        return await self._send("relayer", f"open:{spec.message.job().hex()}", call)

    async def reserve(self, accept: Signed[LeaseAccept]) -> Digest:
        """See `Chain.reserve`."""
        key = f"reserve:{accept.message.digest().hex()}"
        return await self._send("relayer", key, self._contracts.stakes.reserve(accept))

    async def release(self, job: JobId, account: Address) -> Digest:
        """See `Chain.release`."""
        key = f"release:{job.hex()}:{account.hex()}"
        return await self._send("relayer", key, self._contracts.stakes.release(job, account))

    async def anchor(self, root: Digest) -> Digest:
        """See `Chain.anchor`."""
        call = self._contracts.seals.anchor(root)
        return await self._send("anchorer", f"anchor:{root.hex()}", call)

    async def record(self, root: Digest) -> Digest:
        """See `Chain.record`."""
        call = self._contracts.seals.record(self._anchorer)
        return await self._send("anchorer", f"record:{root.hex()}", call)

    async def propose(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> Digest:
        """See `Chain.propose`."""
        call = self._proposal(epoch, root, orders)
        return await self._send("proposer", f"propose:{epoch}:{root.hash.hex()}", call)

    async def check_proposal(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> None:
        """See `Chain.check_proposal`."""
        await self._sender("proposer").check(self._proposal(epoch, root, orders))

    def _proposal(self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]) -> Call:
        statements = [Statement(order.spec, order.seal) for order in orders]
        return self._contracts.settlement.propose(epoch, root, statements)

    async def finalize(self, epoch: EpochNumber) -> Digest:
        """See `Chain.finalize`."""
        call = self._contracts.settlement.finalize()
        return await self._send("relayer", f"finalize:{epoch}", call)

    async def pay_out(self, paid: AccountPay, proof: Proof[SumNode]) -> Digest:
        """See `Chain.pay_out`."""
        settlement, total = self._contracts.settlement, paid.cumulative
        call = settlement.claim(paid.account, total, paid.jobs_root.hash, proof)
        return await self._send("relayer", f"pay_out:{paid.account.hex()}:{total}", call)

    async def close(self, spec: JobSpec, proof: CloseProof | None, *, kept_open: int) -> Digest:
        """See `Chain.close`."""
        escrow = self._contracts.escrow
        if proof is None:
            call, shown = escrow.request_close_unsealed(spec), "unsealed"
        else:
            call = escrow.request_close(spec, proof.seal, _pay_to_show(proof))
            shown = str(proof.seal.message.step)
        key = f"close:{spec.job().hex()}:{kept_open}:{shown}"
        return await self._send("relayer", key, call)

    async def answer_close(self, spec: JobSpec, proof: CloseProof, *, kept_open: int) -> Digest:
        """See `Chain.answer_close`."""
        call = self._contracts.escrow.answer_close(spec, proof.seal, _pay_to_show(proof))
        key = f"answer:{spec.job().hex()}:{kept_open}:{proof.seal.message.step}"
        return await self._send("relayer", key, call)

    async def refund(self, job: JobId) -> Digest:
        """See `Chain.refund`."""
        return await self._send(
            "relayer", f"refund:{job.hex()}", self._contracts.escrow.refund(job)
        )

    async def announce_slash(self, slash: Slash, times_announced: int) -> Digest:
        """See `Chain.announce_slash`."""
        call = self._contracts.stakes.announce_slash(
            slash.account,
            slash.job,
            slash.amount,
            restitution=slash.restitution,
            challenger=slash.challenger,
            bounty=slash.bounty,
            evidence=slash.evidence,
        )
        key = f"announce_slash:{slash.evidence.hex()}:{times_announced}"
        return await self._send("slasher", key, call)

    async def execute_slash(self, case: int) -> Digest:
        """See `Chain.execute_slash`."""
        call = self._contracts.stakes.execute_slash(case)
        return await self._send("slasher", f"execute_slash:{case}", call)

    async def drop_slash(self, case: int) -> Digest:
        """See `Chain.drop_slash`."""
        call = self._contracts.stakes.drop_slash(case)
        return await self._send("slasher", f"drop_slash:{case}", call)

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """See `Chain.give`."""
        sender, name = self._sender("faucet"), f"{account.hex()}:{number}"
        sent = await sender.send(f"gas:{name}", None, value=gas, to=account)
        call = self._contracts.token.faucet(account, tokens)
        return sent.transaction, await self._send("faucet", f"tokens:{name}", call)

    async def resend(self, newest: ChainBlock) -> int:
        """See `Chain.resend`. While the head stays, an account has as many nonces as before."""
        if newest.hash == self._all_ran_at:
            return 0
        sent, all_ran, asked = 0, True, self._num_asked
        for role, sender in self._senders.items():
            try:
                waiting = await sender.resend()
                sent, all_ran = sent + waiting, all_ran and not waiting
            except (errors.Unavailable, errors.Refused) as error:  # which holds up no other role
                log.warning("%s: %s: %s", role, error.code, error.message)
                all_ran = False
        # Read after the nonces too: a chain that changed meanwhile may have run less than they say.
        all_ran = all_ran and (await self._chain.head()).hash == newest.hash
        self._all_ran_at = newest.hash if all_ran and asked == self._num_asked else None
        return sent

    async def is_over(self, until: UnixSeconds) -> bool:
        """See `Chain.is_over`."""
        if time.time() < until:
            return False  # without a request
        if (await self._chain.head()).timestamp >= until:
            return True
        if self._mine is None:
            return False
        await self._mine.request("evm_mine", [])
        return (await self._chain.head()).timestamp >= until

    async def _send(self, role: str, key: str, call: Call) -> Digest:
        return (await self._sender(role).send(key, call)).transaction

    def _sender(self, role: str) -> Sender:
        if role not in self._senders:
            raise errors.WrongConfiguration(f"this process does not hold the key of the {role}")
        self._all_ran_at = None  # who asks for a sender may send
        self._num_asked += 1
        return self._senders[role]


def _pay_to_show(proof: CloseProof) -> Sequence[PayLeaf]:
    """Leaves that prove what is frozen; the contract needs none where nothing can be."""
    seal = proof.seal.message
    return () if seal.last or seal.vested == seal.earned else proof.pay


def _block(block: Block) -> ChainBlock:
    return ChainBlock(block.number, block.hash, block.timestamp)


def _event(log: Log, names: Mapping[Address, str]) -> ChainEvent:
    if log.address not in names:
        raise errors.InvariantBroken(f"an event of 0x{log.address.hex()}, which is not ours")
    return ChainEvent(
        contract=names[log.address],
        event=log.event,
        args=log.args,
        block=log.block,
        block_hash=log.block_hash,
        transaction=log.transaction,
        log_index=log.index,
    )
