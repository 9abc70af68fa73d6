"""Stakes and their reservations: StakeRegistry."""

from dataclasses import dataclass

from hexbytes import HexBytes

from contracts.chain.connection import Block, Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed


@dataclass(frozen=True)
class Stake:
    """An account's stake; `active` includes what is reserved."""

    active: BaseUnits
    reserved: BaseUnits
    unbonding: BaseUnits
    withdrawable_at: UnixSeconds

    @property
    def free(self) -> BaseUnits:
        """What a new lease may reserve."""
        return BaseUnits(self.active - self.reserved)


@dataclass(frozen=True)
class Case:
    """A slash that was announced."""

    account: Address
    amount: BaseUnits
    executable_at: UnixSeconds
    executable_until: UnixSeconds


class Stakes(Contract):
    """StakeRegistry."""

    name = "StakeRegistry"

    async def stake(self, account: Address, at: Block) -> Stake:
        """Stake of an account."""
        active, reserved, _, unbonding, ready = await self._read(
            at, "accountOf", checksummed(account)
        )
        return Stake(
            BaseUnits(active), BaseUnits(reserved), BaseUnits(unbonding), UnixSeconds(ready)
        )

    async def total(self, at: Block) -> BaseUnits:
        """Active stake of all accounts."""
        return BaseUnits(await self._read(at, "totalStaked"))

    async def slashable(self, job: JobId, account: Address, at: Block) -> BaseUnits:
        """What a slash for `job` could take from `account`."""
        return BaseUnits(await self._read(at, "slashable", job, checksummed(account)))

    async def case(self, number: int, at: Block) -> Case | None:
        """A slash case that has not ended."""
        found = await self._read(at, "cases", number)
        account, until = bytes(HexBytes(found[0])), int(found[7])
        if not until:
            return None
        return Case(
            Address(account), BaseUnits(found[1]), UnixSeconds(found[6]), UnixSeconds(until)
        )

    def announce_slash(
        self,
        account: Address,
        job: JobId,
        amount: BaseUnits,
        *,
        restitution: BaseUnits,
        challenger: Address,
        bounty: BaseUnits,
        evidence: Digest,
    ) -> Call:
        """Announce a slash; the slasher only. What is neither restitution nor bounty is burned."""
        return self._encode(
            "announceSlash",
            checksummed(account),
            job,
            amount,
            restitution,
            checksummed(challenger),
            bounty,
            evidence,
        )

    def execute_slash(self, case: int) -> Call:
        """Take what was announced; the slasher only, within the execution window."""
        return self._encode("executeSlash", case)

    def drop_slash(self, case: int) -> Call:
        """End a case without a slash; the slasher, or anyone once it ran out."""
        return self._encode("dropSlash", case)

    def add(self, amount: BaseUnits) -> Call:
        """Stake the caller's tokens; an allowance is needed."""
        return self._encode("stake", amount)

    def request_unbond(self, amount: BaseUnits) -> Call:
        """Ask for free stake back."""
        return self._encode("requestUnbond", amount)

    def withdraw(self) -> Call:
        """Take what was asked back, after the unbonding delay."""
        return self._encode("withdraw")

    def reserve(self, accept: Signed[LeaseAccept]) -> Call:
        """Reserve stake for a lease by its provider's signature; anyone may pay the gas."""
        job, _, *rest = accept.message.typed_values()
        lease = (job, checksummed(accept.message.account), *rest)
        return self._encode("reserve", lease, accept.signature)

    def release(self, job: JobId, account: Address) -> Call:
        """Free what was reserved for a job that is over."""
        return self._encode("releaseReservation", job, checksummed(account))
