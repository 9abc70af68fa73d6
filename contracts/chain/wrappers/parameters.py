"""The protocol's numbers on chain."""

from contracts.chain.blocks import Block
from contracts.chain.wrappers.base import Contract
from contracts.governance.parameters import PARAMETERS
from contracts.terms.errors import InvariantBroken


class ParametersContract(Contract):
    """Parameters."""

    name = "Parameters"
    role = "parameters"

    async def values(self, at: Block) -> dict[str, int]:
        """All values by name."""
        values = await self._read(at, "values")
        if len(values) != len(PARAMETERS):
            raise InvariantBroken(f"{self.name}: {len(values)} values")
        return {each.name: int(value) for each, value in zip(PARAMETERS, values, strict=True)}
