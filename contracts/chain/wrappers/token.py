"""The payment token: balances, permits, and the faucet of development chains."""

from contracts.chain.blocks import Block
from contracts.chain.connection import Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest


class Token(Contract):
    """TestToken; every read but `given` works on any ERC-20 with EIP-2612."""

    name = "TestToken"
    role = "token"

    async def balance(self, account: Address, at: Block) -> BaseUnits:
        """Base units that `account` holds."""
        return BaseUnits(await self._read(at, "balanceOf", checksummed(account)))

    async def permit_nonce(self, owner: Address, at: Block) -> int:
        """Next EIP-2612 nonce of `owner`."""
        return int(await self._read(at, "nonces", checksummed(owner)))

    async def domain_separator(self, at: Block) -> Digest:
        """What permits are signed under."""
        return Digest(bytes(await self._read(at, "DOMAIN_SEPARATOR")))

    async def label(self, at: Block) -> tuple[str, str, int]:
        """Name, symbol and decimals."""
        name, symbol = await self._read(at, "name"), await self._read(at, "symbol")
        return str(name), str(symbol), int(await self._read(at, "decimals"))

    async def given(self, account: Address, at: Block) -> BaseUnits:
        """What the faucet gave to `account` so far."""
        return BaseUnits(await self._read(at, "given", checksummed(account)))

    def approve(self, spender: Address, amount: BaseUnits) -> Call:
        """Let `spender` take `amount`."""
        return self._encode("approve", checksummed(spender), amount)

    def faucet(self, account: Address, amount: BaseUnits) -> Call:
        """Mint test tokens; the minter only."""
        return self._encode("faucet", checksummed(account), amount)
