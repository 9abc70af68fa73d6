"""The contracts over JSON-RPC: `market.service.ports.Chain` on the wrappers of contracts.chain.

Each role has a sender of its own, and who sends holds its account's lock: one account is one nonce
sequence, however many workers there are. Reads are pinned to one block.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.chain.blocks import Block, Log
from contracts.chain.connection import Call, ChainConnection
from contracts.chain.contracts import Contracts
from contracts.chain.sender import Sender
from contracts.governance.escrow import Budget, Channel, EscrowState, EscrowTimes
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import digest
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobHeader, JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.market import ContractsView, EscrowTimesView, NetworkView, TokenView
from market.service.ports import AccountNow, Claim, Locks, Order
from market.service.rows import SlashRow

log = logging.getLogger(__name__)
TOKEN_VERSION = "1"  # OpenZeppelin's ERC20Permit
SETTLING_SECONDS = 2.0  # until a block of the embedded chain is in its state file for certain


@dataclass(frozen=True)
class Confirming:
    """When a block counts: enough blocks on top, or, on an embedded chain, old enough."""

    confirmations: int  # 1: the block itself
    settling_seconds: float


class RpcChain:
    """`Chain` over an RPC endpoint."""

    def __init__(
        self,
        contracts: Contracts,
        *,
        anchorer: Address,
        rpc_url: str,
        confirming: Confirming,
        locks: Locks,
        senders: Mapping[str, Sender] | None = None,
        mine: ChainConnection | None = None,
    ) -> None:
        self._contracts, self._chain = contracts, contracts.chain
        self._anchorer, self._rpc_url = anchorer, rpc_url
        self._confirming, self._senders, self._mine = confirming, senders or {}, mine
        self._locks = locks
        self._times: EscrowTimes | None = None
        self._fixed: tuple[Digest, TokenView] | None = None  # first block and token
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

    async def network(self, version: str, now: UnixMillis) -> NetworkView:
        """See `Chain.network`."""
        deployment = self._contracts.deployment
        if self._fixed is None:
            await self._chain.need_chain(deployment.chain_id)
        at = await self._chain.head()
        if self._fixed is None:
            name, symbol, decimals = await self._contracts.token.label(at)
            token = TokenView(
                name=name,
                version=TOKEN_VERSION,
                symbol=symbol,
                decimals=decimals,
                domain_separator=await self._contracts.token.domain_separator(at),
            )
            self._fixed = await self._chain.genesis(), token
        genesis, token = self._fixed
        return NetworkView(
            version=version,
            chain_id=deployment.chain_id,
            genesis=genesis,
            rpc_url=self._rpc_url,
            embedded=self._mine is not None,
            contracts=ContractsView.of(deployment),
            deployed_block=deployment.block,
            token=token,
            parameters=dict(await self._contracts.parameters.values(at)),
            times=EscrowTimesView.of(await self.times()),
            anchorer=self._anchorer,
            confirmations=self._confirming.confirmations,
            block=at.number,
            clock=now,
        )

    async def times(self) -> EscrowTimes:
        """See `Chain.times`."""
        if self._times is None:
            self._times = await self._contracts.escrow.times(await self._chain.head())
        return self._times

    async def head(self) -> Block:
        """See `Chain.head`."""
        return await self._chain.head()

    async def heads(self) -> tuple[Block, Block]:
        """See `Chain.heads`."""
        newest = await self._chain.head()
        return newest, await self._settled(newest)

    async def _settled(self, newest: Block) -> Block:
        on_top = self._confirming.confirmations - 1
        block = await self._chain.block(max(0, newest.number - on_top)) if on_top else newest
        old_enough = time.time() - self._confirming.settling_seconds
        while self._confirming.settling_seconds and block.timestamp > old_enough and block.number:
            block = await self._chain.block(block.number - 1)
        return block

    async def block(self, number: int) -> Block | None:
        """See `Chain.block`."""
        try:
            return await self._chain.block(number)
        except errors.ChainForgot:
            return None

    async def events(self, first: int, last: int) -> list[Log]:
        """See `Chain.events`."""
        return await self._contracts.events(first, last)

    async def account(self, account: Address) -> AccountNow:
        """See `Chain.account`."""
        at, of = await self._chain.head(), self._contracts
        free, _ = (await of.escrow.balances([account], at))[account]
        return AccountNow(
            gas=await self._chain.balance(account),
            token=await of.token.balance(account, at),
            permit_nonce=await of.token.permit_nonce(account, at),
            free=free,
        )

    async def budget(self, job: JobId) -> Budget:
        """See `Chain.budget`."""
        return (await self._contracts.escrow.budgets([job], await self._chain.head()))[job]

    async def channels(
        self, places: Sequence[tuple[JobId, Address]]
    ) -> tuple[Block, Mapping[tuple[JobId, Address], Channel]]:
        """See `Chain.channels`."""
        _, block = await self.heads()
        return block, await self._contracts.escrow.channels(places, block)

    async def escrow_state(self, known: EscrowState, block: Block) -> EscrowState:
        """See `Chain.escrow_state`."""
        return await self._contracts.escrow.state(known, block)

    # ------------------------------------------------------------------------------------- writes

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """See `Chain.open_job`."""
        escrow, header = self._contracts.escrow, spec.message.header()
        paying = escrow.permit(header.poster, header.budget, permit_deadline, permit)
        call = escrow.together([paying, escrow.open(header, spec.signature)])
        return await self._send("relayer", f"open:{header.job().hex()}", call)

    async def bond_many(self, job: JobId, bonds: Sequence[Signed[Bond]]) -> Digest:
        """See `Chain.bond_many`."""
        names = sorted(each.message.digest() for each in bonds)
        key = f"bonds:{digest('bonds', b''.join(names)).hex()}"
        return await self._send("relayer", key, self._contracts.escrow.bond_many(job, bonds))

    async def relay(self, header: JobHeader, order: Signed[Order]) -> Digest:
        """See `Chain.relay`."""
        message = order.message
        key = f"{message.kind.partition('.')[0]}:{message.digest().hex()}"
        return await self._send("relayer", key, self._order(header, order))

    def _order(self, header: JobHeader, order: Signed[Order]) -> Call:
        escrow, message, signature = self._contracts.escrow, order.message, order.signature
        match message:
            case Grant():
                return escrow.grant(header, Signed(message, signature))
            case End():
                return escrow.end(header, Signed(message, signature))
            case Close():
                return escrow.close(header, Signed(message, signature))
            case Bond():
                return escrow.bond(Signed(message, signature))
            case Quit():
                return escrow.quit(Signed(message, signature))

    async def claim(self, claim: Claim) -> Digest:
        """See `Chain.claim`.

        Claims of one seal are told apart by their place and size in its tree, and by the total, as
        limits may rise.
        """
        escrow, seal, part = self._contracts.escrow, claim.seal, claim.part
        details, first = seal.message.details(), part.leaves[0]
        if len(part.leaves) == 1:
            call = escrow.claim(claim.header, details, seal.signature, first, part.path)
        else:
            call = escrow.claim_all(claim.header, details, seal.signature, part)
        place = f"{first.account.hex()}:{len(part.leaves)}"
        key = f"claim:{seal.message.digest().hex()}:{place}:{claim.total}"
        return await self._send("relayer", key, call)

    async def release(self, job: JobId, ended: Mapping[Address, UnixSeconds]) -> Digest:
        """See `Chain.release`."""
        accounts = sorted(ended)
        said = b"".join(each + ended[each].to_bytes(8, "big") for each in accounts)
        key = f"release:{digest('release', job + said).hex()}"
        return await self._send("relayer", key, self._contracts.escrow.release(job, accounts))

    async def reclaim(self, header: JobHeader, amount: BaseUnits, funded: BaseUnits) -> Digest:
        """See `Chain.reclaim`."""
        key = f"reclaim:{header.job().hex()}:{funded}:{amount}"
        return await self._send("relayer", key, self._contracts.escrow.reclaim(header, amount))

    async def announce(self, slash: SlashRow, times_announced: int) -> Digest:
        """See `Chain.announce`."""
        call = self._contracts.escrow.announce(
            slash.job, slash.account, slash.amount, slash.evidence
        )
        key = f"announce:{slash.evidence.hex()}:{times_announced}"
        return await self._send("slasher", key, call)

    async def burn(self, slash: SlashRow, times_announced: int) -> Digest:
        """See `Chain.burn`."""
        call = self._contracts.escrow.burn(slash.job, slash.account)
        return await self._send("slasher", f"burn:{slash.evidence.hex()}:{times_announced}", call)

    async def anchor(self, root: Digest) -> Digest:
        """See `Chain.anchor`."""
        call = self._contracts.seals.anchor(root)
        return await self._send("anchorer", f"anchor:{root.hex()}", call)

    async def record(self, root: Digest) -> Digest:
        """See `Chain.record`."""
        call = self._contracts.seals.record(self._anchorer)
        return await self._send("anchorer", f"record:{root.hex()}", call)

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """See `Chain.give`."""
        sender, name = self._sender("faucet"), f"{account.hex()}:{number}"
        async with self._locks.hold(_turn(sender)):
            sent = await sender.send(f"gas:{name}", None, value=gas, to=account)
        call = self._contracts.token.faucet(account, tokens)
        return sent.transaction, await self._send("faucet", f"tokens:{name}", call)

    async def resend(self, newest: Block) -> int:
        """See `Chain.resend`. While the head stays, an account has as many nonces as before."""
        if newest.hash == self._all_ran_at:
            return 0
        sent, all_ran, asked = 0, True, self._num_asked
        for role, sender in self._senders.items():
            try:
                async with self._locks.try_hold(_turn(sender)) as is_ours:
                    # Who holds it sends, and broadcasts again what is before that.
                    waiting = await sender.resend() if is_ours else 1
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
        sender = self._sender(role)
        async with self._locks.hold(_turn(sender)):
            return (await sender.send(key, call)).transaction

    def _sender(self, role: str) -> Sender:
        if role not in self._senders:
            raise errors.WrongConfiguration(f"this process does not hold the key of the {role}")
        self._all_ran_at = None  # who asks for a sender may send
        self._num_asked += 1
        return self._senders[role]


def _turn(sender: Sender) -> str:
    return f"sender:{sender.account.hex()}"
