"""The contracts without a chain: the rules that use cases meet, in this process's memory.

Every write is a block of its own, as under automine; time is what the test says it is. It refuses
what the contracts refuse, under the same error names, and logs the same events. Signatures were
checked by the use cases; gas does not exist. `forget` loses the newest blocks, as a killed anvil
does: `resend` brings their transactions back. Its snapshots have the form of proofs and prove
nothing; `prune` loses old states, as a restart of anvil does.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from contracts.chain.proofs import HEADER_FIELDS, Header
from contracts.governance.lane import anchored, recorded
from contracts.governance.pay import pay_root
from contracts.governance.settlement import AccountPay
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import digest
from contracts.terms.encoding import Value
from contracts.terms.errors import ChainForgot, ContractRefused
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, JobId
from contracts.terms.merkle import FROZEN, Proof, SumNode
from contracts.terms.messages import JobSpec, LeaseAccept
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain, WalletDomain
from market.domain.slashing import BPS, Slash
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
from verification.audit.collecting import FindSettlement
from verification.audit.snapshots import SHIPPED_AS, BlockProof, ContractProof, Snapshot

NAMES = ("token", "parameters", "escrow", "stakes", "seals", "settlement", "vault")
PARAMETERS = {
    "challenge_window": 5,
    "min_epoch_length": 1,
    "max_epoch_cap": 10**18,
    "announcement_window": 5,
    "response_window": 10,
    "refund_delay": 40,
    "silence_limit": 60,
    "epoch_length": 20,
    "execution_window": 60,
    "max_slash_bps": 10_000,
    "max_bounty_bps": 2_000,
    "min_burn_bps": 5_000,
    "unbonding_delay": 60,
}


@dataclass
class _Job:
    poster: Address
    deposited: int
    debited: int = 0
    state: str = "open"
    seals: int = 0
    earned: int = 0
    due: int = 0
    silence: bool = False
    respond_from: int = 0
    ends_at: int = 0
    refundable_at: int = 0
    kept_open: int = 0  # JobClosing.shownSeals
    kept_open_at: int = 0


@dataclass
class _Account:
    active: int = 0
    reserved: int = 0
    unbonding: int = 0
    withdrawable_at: int = 0
    token: int = 0
    gas: int = 0
    claimed: int = 0
    cases: int = 0  # open ones
    permits: int = 0  # that were used


@dataclass
class _Case:
    slash: Slash
    executable_at: int
    executable_until: int


@dataclass
class _State:
    """All contracts: rebuilt from the transactions when blocks are forgotten."""

    jobs: dict[JobId, _Job] = field(default_factory=dict)
    accounts: dict[Address, _Account] = field(default_factory=dict)
    reserved: set[Digest] = field(default_factory=set)
    reservations: dict[tuple[JobId, Address], int] = field(default_factory=dict)
    cases: dict[int, _Case] = field(default_factory=dict)
    num_cases: int = 0
    batches: int = 0
    pending: int = 0  # block of the batch whose coin is missing
    lane: Digest = ZERO_DIGEST
    epoch: int = 0
    epoch_sum: int = 0
    root: Digest = ZERO_DIGEST
    booked: bool = True
    ends_at: int = 0
    next_at: int = 0
    funded: int = 0
    paid: int = 0


Effect = Callable[[_State, "_Block"], None]


@dataclass
class _Block:
    number: int
    fork: int  # how often blocks were forgotten before it
    timestamp: int
    transaction: Digest
    events: list[ChainEvent] = field(default_factory=list)

    @property
    def header(self) -> Header:
        """Its header, most fields empty."""
        values = {"number": self.number, "timestamp": self.timestamp, "extraData": self.fork}
        numbers = [values.get(name, 0) for name in HEADER_FIELDS]
        return Header(tuple(each.to_bytes((each.bit_length() + 7) // 8, "big") for each in numbers))

    @property
    def hash(self) -> Digest:
        """The block hash."""
        return self.header.hash

    def log(self, contract: str, event: str, **args: Value) -> None:
        """Append an event."""
        self.events.append(
            ChainEvent(
                contract, event, args, self.number, self.hash, self.transaction, len(self.events)
            )
        )


class MemoryChain:
    """`Chain` in memory. `now` is the time of the next block, in seconds."""

    def __init__(self, domain: Domain, anchorer: Address, *, now: int = 1_700_000_000) -> None:
        self._domain, self._anchorer = domain, anchorer
        self.now = now
        self.blocks: list[_Block] = [_Block(0, 0, now, ZERO_DIGEST)]
        self.parameters = dict(PARAMETERS)
        self.state = _State()
        self._sent: dict[str, Effect] = {}  # by intention, in the order of nonces
        self._mined: list[str] = []
        self._forgotten = 0
        self._proved_from = 0

    @property
    def domain(self) -> Domain:
        """See `Chain.domain`."""
        return self._domain

    @property
    def anchorer(self) -> Address:
        """See `Chain.anchorer`."""
        return self._anchorer

    # ---------------------------------------------------------------------- what tests do to it

    def give_tokens(self, account: Address, amount: int) -> None:
        """Tokens for an account, without a faucet."""
        self._mine(
            f"mint:{account.hex()}:{len(self._sent)}", lambda s, b: _mint(s, account, amount)
        )

    def stake(self, account: Address, amount: int) -> None:
        """What an account does with its own gas."""
        self._mine(
            f"stake:{account.hex()}:{len(self._sent)}", lambda s, b: _stake(s, b, account, amount)
        )

    def unbond(self, account: Address, amount: int) -> None:
        """An account asks for free stake back."""
        delay = self.parameters["unbonding_delay"]
        self._mine(
            f"unbond:{account.hex()}:{len(self._sent)}",
            lambda s, b: _unbond(s, b, account, amount, delay),
        )

    def withdraw(self, account: Address) -> None:
        """An account gets back what it has unbonded."""
        self._mine(
            f"withdraw:{account.hex()}:{len(self._sent)}", lambda s, b: _withdraw(s, b, account)
        )

    def reserve_as_provider(self, accept: LeaseAccept) -> None:
        """Somebody relays a LeaseAccept that its account signed."""
        name = f"reserve_as_provider:{accept.digest().hex()}"
        self._mine(name, lambda s, b: _reserve(s, b, accept))

    def claim(self, account: Address, cumulative: int) -> None:
        """Anybody's claim for an account, under the final root."""
        self._mine(
            f"claim:{account.hex()}:{cumulative}", lambda s, b: _claim(s, b, account, cumulative)
        )

    def open_as_poster(self, spec: JobSpec, amount: int) -> None:
        """The poster opens its job with as much as it likes."""
        name = f"open_as_poster:{spec.job().hex()}"
        self._mine(name, lambda s, b: _open_with(s, b, spec, amount))

    def top_up(self, job: JobId, payer: Address, amount: int) -> None:
        """Anybody adds to a job's budget."""
        name = f"top_up:{job.hex()}:{len(self._sent)}"
        self._mine(name, lambda s, b: _top_up(s, b, job, payer, amount))

    def close_as_poster(self, spec: JobSpec, proof: CloseProof | None = None) -> None:
        """The poster closes its job: by a seal, or because it knows of none."""
        name = f"close_as_poster:{spec.job().hex()}:{len(self._sent)}"
        numbers = self.parameters
        self._mine(name, lambda s, b: _close(s, b, spec.poster, spec, proof, numbers))

    def forget(self, blocks: int, *, for_good: bool = False) -> None:
        """Lose the newest blocks; their transactions are known to their senders only.

        `for_good`: who sent them does not send them again.
        """
        kept = len(self.blocks) - blocks
        if for_good:
            for name in self._mined[kept - 1 :]:
                self._sent.pop(name, None)
        self.blocks, self._mined = self.blocks[:kept], self._mined[: kept - 1]
        self._forgotten += 1
        self.state = _State()
        for name, block in zip(self._mined, self.blocks[1:], strict=True):
            if name in self._sent:
                self._sent[name](
                    self.state, _Block(block.number, block.fork, block.timestamp, block.transaction)
                )

    def prune(self) -> None:
        """Prove nothing of blocks before the head any more."""
        self._proved_from = len(self.blocks) - 1

    # -------------------------------------------------------------------------------------- reads

    async def network(self) -> Network:
        """See `Chain.network`."""
        token = WalletDomain("Tallystick Test Token", "1", self.domain.chain_id, _address("token"))
        return Network(
            genesis=_view(self.blocks[0]).hash,
            rpc_url="http://127.0.0.1:0",
            embedded=True,
            contracts={name: _address(name) for name in NAMES}
            | {"settlement": self.domain.settlement},
            deployed_block=0,
            token_name=token.name,
            token_version=token.version,
            token_symbol="TALLY",
            token_decimals=6,
            token_separator=token.separator,
            parameters=self.parameters,
        )

    async def head(self) -> ChainBlock:
        """See `Chain.head`."""
        return _view(self.blocks[-1])

    async def heads(self) -> tuple[ChainBlock, ChainBlock]:
        """See `Chain.heads`."""
        return await self.head(), await self.head()

    async def block(self, number: int) -> ChainBlock | None:
        """See `Chain.block`."""
        return _view(self.blocks[number]) if number < len(self.blocks) else None

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        """See `Chain.events`."""
        return [event for block in self.blocks[first : last + 1] for event in block.events]

    async def account(self, account: Address) -> AccountNow:
        """See `Chain.account`."""
        found = self.state.accounts.get(account, _Account())
        stake = _stake_now(found)
        return AccountNow(
            gas=found.gas,
            token=BaseUnits(found.token),
            permit_nonce=found.permits,
            claimed=BaseUnits(found.claimed),
            stake=stake,
            block=self.blocks[-1].number,
        )

    async def stake_of(self, account: Address) -> tuple[int, StakeNow]:
        """See `Chain.stake_of`."""
        found = self.state.accounts.get(account, _Account())
        return self.blocks[-1].number, _stake_now(found)

    async def stakes(
        self, accounts: Sequence[Address]
    ) -> tuple[ChainBlock, Mapping[Address, StakeNow]]:
        """See `Chain.stakes`."""
        known = self.state.accounts
        found = {account: _stake_now(known.get(account, _Account())) for account in accounts}
        return await self.head(), found

    async def slashable(self, job: JobId, account: Address) -> BaseUnits:
        """See `Chain.slashable`."""
        return BaseUnits(_slashable(self.state, job, account))

    async def slash_case(self, case: int) -> CaseNow | None:
        """See `Chain.slash_case`."""
        found = self.state.cases.get(case)
        if found is None:
            return None
        return CaseNow(UnixSeconds(found.executable_at), UnixSeconds(found.executable_until))

    async def job(self, job: JobId) -> JobNow:
        """See `Chain.job`."""
        found = self.state.jobs.get(job, _Job(Address(bytes(20)), 0, state="none"))
        state = found.state
        if state == "closing" and self.now >= found.ends_at:
            state = "closed"
        return JobNow(
            deposited=BaseUnits(found.deposited),
            debited=BaseUnits(found.debited),
            state=state,
            seals=found.seals,
            earned=BaseUnits(found.earned),
            due=BaseUnits(found.due),
            ends_at=UnixSeconds(found.ends_at),
            refundable_at=UnixSeconds(found.refundable_at),
            kept_open=found.kept_open,
        )

    async def newest_epoch(self) -> EpochNow:
        """See `Chain.newest_epoch`."""
        s = self.state
        ends, following = UnixSeconds(s.ends_at), UnixSeconds(s.next_at)
        return EpochNow(EpochNumber(s.epoch), s.root, s.booked, ends, following)

    async def totals(self) -> Totals:
        """See `Chain.totals`."""
        return Totals(BaseUnits(self.state.funded), BaseUnits(self.state.paid))

    async def snapshot(
        self, audited: Audited, find: FindSettlement, *, block: int, before: Header | None
    ) -> Snapshot:
        """See `Chain.snapshot`."""
        if not self._proved_from <= block < len(self.blocks):
            raise ChainForgot(f"block {block} cannot be proved", number=block)
        if before is not None and self.blocks[before.number].header != before:
            raise ChainForgot(f"block {block} knows another block {before.number}")
        final = [each for each in await self.events(0, block) if each.event == "EpochFinal"]
        root = final[-1].args["root"] if final else ZERO_DIGEST
        assert isinstance(root, bytes)
        known = None if before is None else BlockProof((), ())
        contracts = {name: ContractProof((), {}) for name in SHIPPED_AS}
        return Snapshot(self.blocks[block].header, known, contracts, await find(Digest(root)))

    # ------------------------------------------------------------------------------------- writes

    async def open_job(
        self, spec: Signed[JobSpec], permit_deadline: UnixSeconds, permit: bytes
    ) -> Digest:
        """See `Chain.open_job`."""
        message = spec.message
        return self._mine(
            f"open:{message.job().hex()}", lambda s, b: _open(s, b, message, permit_deadline)
        )

    async def reserve(self, accept: Signed[LeaseAccept]) -> Digest:
        """See `Chain.reserve`."""
        message = accept.message
        return self._mine(f"reserve:{message.digest().hex()}", lambda s, b: _reserve(s, b, message))

    async def release(self, job: JobId, account: Address) -> Digest:
        """See `Chain.release`."""
        name = f"release:{job.hex()}:{account.hex()}"
        return self._mine(name, lambda s, b: _release(s, b, job, account))

    async def anchor(self, root: Digest) -> Digest:
        """See `Chain.anchor`."""
        caller = self._anchorer
        return self._mine(f"anchor:{root.hex()}", lambda s, b: _anchor(s, b, caller, root))

    async def record(self, root: Digest) -> Digest:
        """See `Chain.record`."""
        caller = self._anchorer
        return self._mine(f"record:{root.hex()}", lambda s, b: _record(s, b, caller))

    async def propose(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> Digest:
        """See `Chain.propose`."""
        numbers = self.parameters
        return self._mine(
            f"propose:{epoch}:{root.hash.hex()}",
            lambda s, b: _propose(s, b, epoch, root, orders, numbers),
        )

    async def check_proposal(
        self, epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder]
    ) -> None:
        """See `Chain.check_proposal`."""
        block = _Block(len(self.blocks), self._forgotten, self.now, ZERO_DIGEST)
        _propose(deepcopy(self.state), block, epoch, root, orders, self.parameters)

    async def finalize(self, epoch: EpochNumber) -> Digest:
        """See `Chain.finalize`."""
        return self._mine(f"finalize:{epoch}", _finalize)

    async def pay_out(self, paid: AccountPay, proof: Proof[SumNode]) -> Digest:
        """See `Chain.pay_out`."""
        account, total = paid.account, paid.cumulative
        return self._mine(
            f"claim:{account.hex()}:{total}", lambda s, b: _claim(s, b, account, total)
        )

    async def close(self, spec: JobSpec, proof: CloseProof | None, *, kept_open: int) -> Digest:
        """See `Chain.close`."""
        caller, numbers = _address("relayer"), self.parameters
        shown = "unsealed" if proof is None else str(proof.seal.message.step)
        name = f"close:{spec.job().hex()}:{kept_open}:{shown}"
        return self._mine(name, lambda s, b: _close(s, b, caller, spec, proof, numbers))

    async def answer_close(self, spec: JobSpec, proof: CloseProof, *, kept_open: int) -> Digest:
        """See `Chain.answer_close`."""
        numbers = self.parameters
        name = f"answer:{spec.job().hex()}:{kept_open}:{proof.seal.message.step}"
        return self._mine(name, lambda s, b: _answer_close(s, b, spec, proof, numbers))

    async def refund(self, job: JobId) -> Digest:
        """See `Chain.refund`."""
        return self._mine(f"refund:{job.hex()}", lambda s, b: _refund(s, b, job))

    async def announce_slash(self, slash: Slash, times_announced: int) -> Digest:
        """See `Chain.announce_slash`."""
        numbers = self.parameters
        name = f"announce_slash:{slash.evidence.hex()}:{times_announced}"
        return self._mine(name, lambda s, b: _announce(s, b, slash, numbers))

    async def execute_slash(self, case: int) -> Digest:
        """See `Chain.execute_slash`."""
        return self._mine(f"execute_slash:{case}", lambda s, b: _execute(s, b, case))

    async def drop_slash(self, case: int) -> Digest:
        """See `Chain.drop_slash`."""
        return self._mine(f"drop_slash:{case}", lambda s, b: _drop(s, b, case))

    async def give(
        self, account: Address, number: int, gas: int, tokens: BaseUnits
    ) -> tuple[Digest, Digest]:
        """See `Chain.give`."""
        name = f"{account.hex()}:{number}"
        return (
            self._mine(f"gas:{name}", lambda s, b: _gas(s, account, gas)),
            self._mine(f"tokens:{name}", lambda s, b: _mint(s, account, tokens)),
        )

    async def resend(self, newest: ChainBlock) -> int:
        """See `Chain.resend`."""
        lost = [name for name in self._sent if name not in self._mined]
        for name in lost:
            self._mine(name, self._sent[name])
        return len(lost)

    async def is_over(self, until: UnixSeconds) -> bool:
        """See `Chain.is_over`."""
        if self.blocks[-1].timestamp < until <= self.now:
            self._mine(f"empty:{len(self.blocks)}", lambda s, b: None)
        return self.blocks[-1].timestamp >= until

    def _mine(self, name: str, effect: Effect) -> Digest:
        """Run `effect` once per intention, in a block of its own."""
        transaction = digest("transaction", name.encode())
        if name in self._mined:
            return transaction
        number = len(self.blocks)
        block = _Block(number, self._forgotten, self.now, transaction)
        effect(self.state, block)  # refuses before it changes anything
        self.blocks.append(block)
        self._mined.append(name)
        self._sent[name] = effect
        return transaction


def _address(name: str) -> Address:
    return Address(digest("contract", name.encode())[:20])


def _view(block: _Block) -> ChainBlock:
    return ChainBlock(block.number, block.hash, UnixSeconds(block.timestamp))


def _need(holds: bool, error: str) -> None:
    if not holds:
        raise ContractRefused(error, error=error)


def _of(state: _State, account: Address) -> _Account:
    return state.accounts.setdefault(account, _Account())


def _mint(state: _State, account: Address, amount: int) -> None:
    _of(state, account).token += amount


def _gas(state: _State, account: Address, amount: int) -> None:
    _of(state, account).gas += amount


def _stake(state: _State, block: _Block, account: Address, amount: int) -> None:
    _pay(state, account, amount)
    _of(state, account).active += amount
    block.log("stakes", "Staked", account=account, amount=amount)


def _unbond(state: _State, block: _Block, account: Address, amount: int, delay: int) -> None:
    found = _of(state, account)
    _need(found.active - found.reserved >= amount, "NotEnoughFree")
    found.active -= amount
    found.unbonding += amount
    found.withdrawable_at = block.timestamp + delay
    block.log("stakes", "UnbondRequested", account=account, amount=amount)


def _withdraw(state: _State, block: _Block, account: Address) -> None:
    found = _of(state, account)
    _need(not found.cases, "CaseOpen")
    _need(found.unbonding > 0, "ZeroAmount")
    _need(block.timestamp >= found.withdrawable_at, "StillUnbonding")
    amount, found.unbonding = found.unbonding, 0
    found.token += amount
    block.log("stakes", "Withdrawn", account=account, amount=amount)


def _stake_now(found: _Account) -> StakeNow:
    return StakeNow(BaseUnits(found.active), BaseUnits(found.reserved), BaseUnits(found.unbonding))


def _slashable(state: _State, job: JobId, account: Address) -> int:
    found = state.accounts.get(account, _Account())
    free = found.active - found.reserved
    return state.reservations.get((job, account), 0) + free + found.unbonding


def _announce(state: _State, block: _Block, slash: Slash, numbers: dict[str, int]) -> None:
    cap = _slashable(state, slash.job, slash.account) * numbers["max_slash_bps"] // BPS
    _need(slash.amount > 0, "ZeroAmount")
    _need(slash.amount <= cap, "SlashCap")
    _need(slash.bounty <= slash.amount * numbers["max_bounty_bps"] // BPS, "SlashCap")
    given = slash.amount * (BPS - numbers["min_burn_bps"]) // BPS
    _need(slash.restitution + slash.bounty <= given, "SlashCap")
    at = block.timestamp + numbers["announcement_window"]
    state.num_cases += 1
    state.cases[state.num_cases] = _Case(slash, at, at + numbers["execution_window"])
    _of(state, slash.account).cases += 1
    block.log(
        "stakes",
        "SlashAnnounced",
        id=state.num_cases,
        account=slash.account,
        job=slash.job,
        amount=slash.amount,
        evidence=slash.evidence,
    )


def _execute(state: _State, block: _Block, number: int) -> None:
    case = state.cases.get(number)
    _need(case is not None, "UnknownCase")
    assert case is not None
    _need(case.executable_at <= block.timestamp < case.executable_until, "NotExecutable")
    slash = case.slash
    taken = min(slash.amount, _slashable(state, slash.job, slash.account))
    restitution = taken * slash.restitution // slash.amount
    bounty = taken * slash.bounty // slash.amount
    _need(not bounty or any(slash.challenger), "ERC20InvalidReceiver")
    _take(state, slash)
    _of(state, slash.challenger).token += bounty
    _close_case(state, block, number, (restitution, bounty, taken - restitution - bounty))
    if restitution:
        state.jobs[slash.job].deposited += restitution
        block.log("escrow", "ToppedUp", job=slash.job, amount=restitution)


def _take(state: _State, slash: Slash) -> None:
    """From the job's reservation first, then free stake, then unbonding stake."""
    found, key = _of(state, slash.account), (slash.job, slash.account)
    held = min(slash.amount, state.reservations.get(key, 0))
    free = min(slash.amount - held, found.active - found.reserved)
    unbonding = min(slash.amount - held - free, found.unbonding)
    if held:
        state.reservations[key] -= held
    found.reserved -= held
    found.active -= held + free
    found.unbonding -= unbonding


def _drop(state: _State, block: _Block, number: int) -> None:
    _need(number in state.cases, "UnknownCase")
    _close_case(state, block, number, (0, 0, 0))


def _close_case(state: _State, block: _Block, number: int, parts: tuple[int, int, int]) -> None:
    account = state.cases.pop(number).slash.account
    _of(state, account).cases -= 1
    names = ("restitution", "bounty", "burned")
    taken = dict(zip(names, parts, strict=True))
    block.log("stakes", "SlashEnded", id=number, account=account, **taken)


def _open(state: _State, block: _Block, spec: JobSpec, permit_deadline: int) -> None:
    _need(permit_deadline >= block.timestamp, "ERC20InsufficientAllowance")
    _open_with(state, block, spec, spec.budget)
    _of(state, spec.poster).permits += 1


def _open_with(state: _State, block: _Block, spec: JobSpec, amount: int) -> None:
    _need(spec.job() not in state.jobs, "JobExists")
    _need(spec.deadline > block.timestamp, "DeadlinePassed")
    _pay(state, spec.poster, amount)
    state.jobs[spec.job()] = _Job(spec.poster, amount)
    block.log("escrow", "JobOpened", job=spec.job(), poster=spec.poster, amount=amount)


def _top_up(state: _State, block: _Block, job: JobId, payer: Address, amount: int) -> None:
    _need(job in state.jobs, "UnknownJob")
    _pay(state, payer, amount)
    state.jobs[job].deposited += amount
    block.log("escrow", "ToppedUp", job=job, amount=amount)


def _pay(state: _State, account: Address, amount: int) -> None:
    found = _of(state, account)
    _need(amount > 0, "ZeroAmount")
    _need(found.token >= amount, "ERC20InsufficientBalance")
    found.token -= amount


def _reserve(state: _State, block: _Block, accept: LeaseAccept) -> None:
    found = _of(state, accept.account)
    _need(accept.digest() not in state.reserved, "AlreadyReserved")
    _need(accept.job in state.jobs and state.jobs[accept.job].state == "open", "JobNotOpen")
    _need(found.active - found.reserved >= accept.stake, "NotEnoughFree")
    _need(not found.cases, "CaseOpen")
    found.reserved += accept.stake
    key = (accept.job, accept.account)
    state.reservations[key] = state.reservations.get(key, 0) + accept.stake
    state.reserved.add(accept.digest())
    block.log(
        "stakes",
        "Reserved",
        job=accept.job,
        account=accept.account,
        sessionKey=accept.session_key,
        amount=accept.stake,
    )


def _release(state: _State, block: _Block, job: JobId, account: Address) -> None:
    found, amount = _of(state, account), state.reservations.get((job, account), 0)
    _need(amount > 0, "NothingReserved")
    _need(block.timestamp >= state.jobs[job].refundable_at > 0, "JobNotOver")
    _need(not found.cases, "CaseOpen")
    found.reserved -= amount
    del state.reservations[job, account]
    block.log("stakes", "ReservationReleased", job=job, account=account, amount=amount)


def _anchor(state: _State, block: _Block, caller: Address, root: Digest) -> None:
    if state.pending:
        _record(state, block, caller)
    state.lane = anchored(state.lane, root, block.number)
    block.log("seals", "Anchored", caller=caller, index=state.batches, root=root, lane=state.lane)
    state.batches += 1
    state.pending = block.number


def _record(state: _State, block: _Block, caller: Address) -> None:
    _need(state.pending != 0, "NothingPending")
    coin = digest("coin", str(state.pending).encode())
    state.lane = recorded(state.lane, coin)
    block.log(
        "seals",
        "Recorded",
        caller=caller,
        index=state.batches - 1,
        blockNumber=state.pending,
        coin=coin,
    )
    state.pending = 0


def _propose(
    state: _State,
    block: _Block,
    epoch: int,
    root: SumNode,
    orders: Sequence[PayOrder],
    numbers: dict[str, int],
) -> None:
    _need(epoch == state.epoch + 1, f"WrongEpoch({epoch}, {state.epoch + 1})")
    _need(block.timestamp >= state.next_at, "EpochTooEarly")
    _need(state.booked or block.timestamp >= state.ends_at, "EpochPending")
    before = state.epoch_sum if not state.booked else state.funded
    amounts = {order.spec.job(): _debit(state, block, order, numbers) for order in orders}
    _need(before + sum(amounts.values()) == root.sum, "WrongSum")
    if not state.booked:
        _book(state, block)
    for job, amount in amounts.items():
        state.jobs[job].debited += amount
        block.log("escrow", "Debited", job=job, epoch=epoch, amount=amount)
    state.epoch, state.epoch_sum, state.root, state.booked = epoch, root.sum, root.hash, False
    state.ends_at = block.timestamp + numbers["challenge_window"]
    state.next_at = block.timestamp + numbers["min_epoch_length"]
    block.log(
        "settlement",
        "EpochPosted",
        epoch=epoch,
        root=root.hash,
        rootSum=root.sum,
        windowEnds=state.ends_at,
    )


def _debit(state: _State, block: _Block, order: PayOrder, numbers: dict[str, int]) -> int:
    job = state.jobs[order.spec.job()]
    cap = min(order.spec.epoch_cap, numbers["max_epoch_cap"])
    is_closed = job.state == "closing" and block.timestamp >= job.ends_at
    due = max(min(job.due, job.deposited), job.debited)
    if order.seal is None:
        _need(is_closed, "NotClosed")
        return min(due - job.debited, cap)
    vested = order.seal.message.vested
    target = min(vested, due) if is_closed else vested
    _need(target <= job.deposited, "Overdrawn")
    _need(target >= job.debited, "VestedBelowDebited")
    _need(target - job.debited <= cap, "EpochCapExceeded")
    return target - job.debited


def _book(state: _State, block: _Block) -> None:
    state.funded, state.booked = state.epoch_sum, True
    block.log("settlement", "EpochFinal", epoch=state.epoch, root=state.root, funded=state.funded)


def _finalize(state: _State, block: _Block) -> None:
    _need(not state.booked, "NothingToFinalize")
    _need(block.timestamp >= state.ends_at, "EpochPending")
    _book(state, block)


def _claim(state: _State, block: _Block, account: Address, cumulative: int) -> None:
    found = _of(state, account)
    amount = cumulative - found.claimed
    _need(amount > 0, "NothingToClaim")
    _need(amount <= state.funded - state.paid, "ExceedsFunded")
    found.claimed = cumulative
    found.token += amount
    state.paid += amount
    block.log("settlement", "Claimed", account=account, amount=amount, cumulative=cumulative)


def _close(
    state: _State,
    block: _Block,
    caller: Address,
    spec: JobSpec,
    proof: CloseProof | None,
    numbers: dict[str, int],
) -> None:
    """The poster alone may say before the deadline that there is no seal."""
    job = state.jobs.get(spec.job())
    _need(job is not None and job.state == "open", "NotOpen")
    assert job is not None
    is_last = proof is not None and proof.seal.message.last
    silence = not is_last and block.timestamp <= spec.deadline
    if proof is None:
        _need(not silence or caller == spec.poster, "PosterOnly")
        _need(not job.debited and not job.kept_open, "HasSeals")
    if silence:
        _need_silent(job, block, proof, numbers)
    job.state, job.silence = "closing", silence
    _set_times(job, block.timestamp + (numbers["silence_limit"] if silence else 0), numbers)
    _show(block, spec, job, proof)


def _need_silent(
    job: _Job, block: _Block, proof: CloseProof | None, numbers: dict[str, int]
) -> None:
    """A seal at least as late as the one that kept the job open, and not soon after that."""
    seals = 0 if proof is None else proof.seal.message.step + 1
    next_at = job.kept_open_at + numbers["silence_limit"] if job.kept_open_at else 0
    _need(seals >= job.kept_open and block.timestamp >= next_at, "NotSilent")


def _set_times(job: _Job, respond_from: int, numbers: dict[str, int]) -> None:
    job.respond_from = respond_from
    job.ends_at = respond_from + numbers["response_window"]
    job.refundable_at = respond_from + numbers["refund_delay"]


def _answer_close(
    state: _State, block: _Block, spec: JobSpec, proof: CloseProof, numbers: dict[str, int]
) -> None:
    job, seal = state.jobs[spec.job()], proof.seal.message
    _need(job.state == "closing" and block.timestamp < job.ends_at, "NotClosing")
    is_later = seal.step + 1 > job.seals and not seal.last
    if job.silence and is_later and block.timestamp < job.respond_from:
        _keep_open(state, block, spec.job(), seal.step + 1)
        return
    _need((seal.earned, seal.step + 1) > (job.earned, job.seals), "NotBetter")
    if job.silence and seal.last:
        job.silence = False
        _set_times(job, block.timestamp, numbers)
    _show(block, spec, job, proof)


def _keep_open(state: _State, block: _Block, name: JobId, seals: int) -> None:
    job = state.jobs[name]
    state.jobs[name] = _Job(
        job.poster, job.deposited, job.debited, kept_open=seals, kept_open_at=block.timestamp
    )
    block.log("escrow", "KeptOpen", job=name, seals=seals)


def _show(block: _Block, spec: JobSpec, job: _Job, proof: CloseProof | None) -> None:
    """A close by a seal, or by none."""
    if proof is not None:
        seal = proof.seal.message
        job.seals, job.earned, job.due = seal.step + 1, seal.earned, _due(proof)
    block.log(
        "escrow",
        "CloseRequested",
        job=spec.job(),
        seals=job.seals,
        earned=job.earned,
        due=job.due,
        silence=job.silence,
        endsAt=job.ends_at,
        refundableAt=job.refundable_at,
    )


def _due(proof: CloseProof) -> int:
    """Earned and not frozen; the contract reads nothing of the pay but its first leaf."""
    seal = proof.seal.message
    if seal.last or seal.vested == seal.earned:
        return seal.vested
    root = pay_root(proof.pay)
    is_shown = (root.hash, root.earned, root.vested) == (seal.pay_root, seal.earned, seal.vested)
    _need(is_shown, "WrongPayLeaf")
    first = proof.pay[0]
    return seal.earned - (first.earned - first.vested if first.account == FROZEN else 0)


def _refund(state: _State, block: _Block, name: JobId) -> None:
    job = state.jobs[name]
    _need(job.state == "closing" and block.timestamp >= job.refundable_at, "RefundNotDue")
    kept = max(job.earned, job.debited)
    _need(kept < job.deposited, "NothingToRefund")
    amount, job.deposited = job.deposited - kept, kept
    _of(state, job.poster).token += amount
    block.log("escrow", "Refunded", job=name, poster=job.poster, amount=amount)
