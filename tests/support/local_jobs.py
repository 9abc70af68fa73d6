"""Jobs of local steps: what `history.make_spec` is told for one."""

from typing import Any

from contracts.terms.messages import LocalSpec


def of_local_steps(**changed: Any) -> dict[str, Any]:
    """Rounds of three peers, one unit of two steps of four rows each, but for what changed."""
    usual = {
        "inner_steps": 2, "segments": 1, "rewarm_steps": 5, "outer_rate": 10**6,
        "outer_momentum": 0, "round_time": 60_000, "quorum": 2,
    }  # fmt: skip
    local = LocalSpec(**usual | changed)
    return {
        "strategy": "local",
        "local": local,
        "gradient_codec": "seeded4",
        "rows_per_unit": 4 * local.inner_steps,
        "units_per_step": 3 * local.segments,
    }
