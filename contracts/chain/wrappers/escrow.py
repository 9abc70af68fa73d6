"""Budgets, limits, stakes and claims of jobs: JobEscrow.

A call with a signature may be sent by anyone; an empty signature means that its party sends it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contracts.chain.blocks import Block, Log
from contracts.chain.connection import Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.governance.claims import Path, Subtree
from contracts.governance.escrow import Budget, Channel, EscrowState, EscrowTimes
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ChainForgot
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit, Withdraw
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobHeader
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed

READS = 250
"""Reads in one `eth_call`; nodes refuse answers and gas without end."""


class JobEscrow(Contract):
    """JobEscrow."""

    name = "JobEscrow"
    role = "escrow"

    # -------------------------------------------------------------------------------------- reads

    async def times(self, at: Block) -> EscrowTimes:
        """How long its windows are."""
        names = ("MARGIN", "ANNOUNCE", "EXECUTE", "TAIL")
        found = await self._words([(name,) for name in names], at)
        return EscrowTimes(*(value for (value,) in found))

    async def balances(
        self, accounts: Sequence[Address], at: Block
    ) -> dict[Address, tuple[BaseUnits, int]]:
        """Free money of accounts, and the nonce of the next withdrawal that each signs."""
        found = await self._words([("balances", checksummed(each)) for each in accounts], at)
        return {
            account: (BaseUnits(amount), nonce)
            for account, (amount, nonce) in zip(accounts, found, strict=True)
        }

    async def budgets(self, jobs: Sequence[JobId], at: Block) -> dict[JobId, Budget]:
        """What is held for jobs; empty for one that was never opened."""
        found = await self._words([(name, job) for job in jobs for name in ("jobs", "buckets")], at)
        return {
            job: Budget(*of_job[:3], *bucket)
            for job, of_job, bucket in zip(jobs, found[::2], found[1::2], strict=True)
        }

    async def channels(
        self, places: Sequence[tuple[JobId, Address]], at: Block
    ) -> dict[tuple[JobId, Address], Channel]:
        """Limits and stakes of accounts in jobs."""
        views = [
            (name, job, checksummed(account))
            for job, account in places
            for name in ("granted", "bonds")
        ]
        found = await self._words(views, at)
        return {
            place: Channel(*granted[:3], *bond)
            for place, granted, bond in zip(places, found[::2], found[1::2], strict=True)
        }

    async def state(self, known: EscrowState, at: Block) -> EscrowState:
        """All that the contract stores of the rows of `known`, to compare the two."""
        balances = await self.balances(list(known.balances), at)
        return replace(
            known,
            balances={account: amount for account, (amount, _) in balances.items()},
            budgets=await self.budgets(list(known.budgets), at),
            channels=await self.channels(list(known.channels), at),
        )

    async def events(self, from_block: int, to_block: int) -> list[Log]:
        """See `Contract.events`; with the time of each block, and of a header what is money.

        Raises:
            ChainForgot: the chain went back while it was read.
        """
        blocks = dict[int, Block]()
        found = list[Log]()
        for log in await super().events(from_block, to_block):
            if log.block not in blocks:
                blocks[log.block] = await self.chain.block(log.block)
            block = blocks[log.block]
            if block.hash != log.block_hash:
                raise ChainForgot(f"block {log.block} was replaced", number=log.block)
            args = dict(log.args)
            header = args.pop("header", {})
            args |= {name: header[name] for name in ("budget", "burst", "rate") if header}
            found.append(replace(log, args=args, at=block.timestamp))
        return found

    async def _words(self, views: Sequence[tuple[Any, ...]], at: Block) -> list[list[int]]:
        """What views of plain numbers return, in few requests."""
        calls = [self._encode(*view).data for view in views]
        answers = [
            answer
            for first in range(0, len(calls), READS)
            for answer in await self._read(at, "multicall", calls[first : first + READS])
        ]
        return [
            [int.from_bytes(answer[i : i + 32], "big") for i in range(0, len(answer), 32)]
            for answer in answers
        ]

    # ------------------------------------------------------------------------------------- writes

    def together(self, calls: Sequence[Call]) -> Call:
        """Several calls as one, all of them or none."""
        return self._encode("multicall", [call.data for call in calls])

    def deposit(self, account: Address, amount: BaseUnits) -> Call:
        """Add the caller's tokens to a balance; an allowance is needed."""
        return self._encode("deposit", checksummed(account), amount)

    def permit(self, owner: Address, amount: int, deadline: UnixSeconds, signature: bytes) -> Call:
        """Use an EIP-2612 permit, before `open` or `deposit` in one call."""
        r, s, v = signature[:32], signature[32:64], signature[64]
        return self._encode("permit", checksummed(owner), amount, deadline, v, r, s)

    def withdraw(self, to: Address, amount: BaseUnits) -> Call:
        """Send the caller's free money to `to`."""
        return self._encode("withdraw", checksummed(to), amount)

    def withdraw_for(self, signed: Signed[Withdraw]) -> Call:
        """Send an account its free money; the fee in it is the sender's."""
        account, *rest = signed.message.typed_values()
        return self._encode("withdrawFor", account, *rest, signed.signature)

    def open(self, header: JobHeader, signature: bytes = b"") -> Call:
        """Open a job with its poster's tokens; an allowance is needed."""
        return self._encode("open", header.typed_values(), signature)

    def top_up(self, job: JobId, amount: BaseUnits) -> Call:
        """Add the caller's tokens to a budget; an allowance is needed."""
        return self._encode("topUp", job, amount)

    def reclaim(self, header: JobHeader, amount: BaseUnits) -> Call:
        """Give the poster what is not committed, `amount` at most."""
        return self._encode("reclaim", header.typed_values(), amount)

    def close(self, header: JobHeader, signed: Signed[Close]) -> Call:
        """End the work of all accounts."""
        return self._encode("close", header.typed_values(), signed.message.by, signed.signature)

    def grant(self, header: JobHeader, signed: Signed[Grant]) -> Call:
        """Raise limits; those that bucket and budget do not allow are skipped."""
        words = [limit.word() for limit in signed.message.limits]
        return self._encode(
            "grant", header.typed_values(), words, signed.message.by, signed.signature
        )

    def end(self, header: JobHeader, signed: Signed[End]) -> Call:
        """End the work of accounts that are gone."""
        accounts = [checksummed(account) for account in signed.message.accounts]
        return self._encode(
            "end", header.typed_values(), accounts, signed.message.by, signed.signature
        )

    def bond(self, signed: Signed[Bond]) -> Call:
        """Put stake behind an account's work."""
        return self._encode("bond", *signed.message.typed_values(), signed.signature)

    def bond_many(self, job: JobId, bonds: Sequence[Signed[Bond]]) -> Call:
        """Put stakes behind the work of many; those that are not allowed now are skipped."""
        values = [(*signed.message.typed_values()[1:], signed.signature) for signed in bonds]
        return self._encode("bondMany", job, values)

    def quit(self, signed: Signed[Quit]) -> Call:
        """Stop an account's work."""
        return self._encode("quit", *signed.message.typed_values(), signed.signature)

    def claim(
        self, header: JobHeader, details: Digest, seal: bytes, leaf: PayLeaf, path: Path
    ) -> Call:
        """Pay one account what a seal vests; `seal` is its signature, `details` the rest of it."""
        return self._encode(
            "claim",
            header.typed_values(),
            details,
            seal,
            checksummed(leaf.account),
            leaf.earned,
            leaf.vested,
            path.sides,
            path.siblings,
        )

    def claim_all(self, header: JobHeader, details: Digest, seal: bytes, of: Subtree) -> Call:
        """Pay all accounts of a subtree what a seal vests."""
        return self._encode(
            "claimAll",
            header.typed_values(),
            details,
            seal,
            of.packed(),
            of.path.sides,
            of.path.siblings,
        )

    def release(self, job: JobId, accounts: Sequence[Address]) -> Call:
        """Free limits and stakes of accounts whose end is `TAIL` ago; others are skipped."""
        return self._encode("release", job, [checksummed(account) for account in accounts])

    def announce(self, job: JobId, account: Address, amount: BaseUnits, evidence: Digest) -> Call:
        """Announce what will be burned; the slasher only."""
        return self._encode("announce", job, checksummed(account), amount, evidence)

    def burn(self, job: JobId, account: Address) -> Call:
        """Burn what was announced; the slasher only, in its time."""
        return self._encode("burn", job, checksummed(account))

    def drop(self, job: JobId, account: Address) -> Call:
        """Take an announced slash back; the slasher or the canceller."""
        return self._encode("drop", job, checksummed(account))
