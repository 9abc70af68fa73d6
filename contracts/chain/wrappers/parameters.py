"""The protocol's numbers on chain."""

from contracts.chain.artifacts import artifact
from contracts.chain.connection import Block
from contracts.chain.wrappers.base import Contract
from contracts.terms.errors import InvariantBroken

KEYS = (
    "notice_period",
    "audit_floor_ppm",
    "sum_audit_ppm",
    "repeat_ppm",
    "margin_ppm",
    "deadline_steps",
    "vesting_steps",
)
"""Names of `Parameters.Key`, in its order; spans in seconds."""


class ParametersContract(Contract):
    """Parameters."""

    name = "Parameters"

    async def values(self, at: Block) -> dict[str, int]:
        """All values by name."""
        values = await self._read(at, "values")
        if len(values) != len(KEYS):
            raise InvariantBroken(f"{artifact(self.name).name}: {len(values)} values")
        return dict(zip(KEYS, map(int, values), strict=True))
