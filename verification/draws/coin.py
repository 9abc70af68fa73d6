"""What a step is drawn with: B_t, from the coin of the first batch that holds its seal. Pure.

B_t depends on the job, the step and the hash of the anchoring block, and not on what the seal says,
so that variants of a seal are useless (docs/protocol.md 4). A coin of zero was recorded after
EIP-2935 forgot the block: then everything of that batch is drawn.
"""

from contracts.terms.digest import digest
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber


def step_coin(job: JobId, step: StepNumber, coin: Digest) -> Digest | None:
    """B_t of `step`, or None where the coin came too late and everything is drawn."""
    if coin == ZERO_DIGEST:
        return None
    return digest("step coin", job + step.to_bytes(8, "big") + coin)


def ordering_coin(job: JobId, step: StepNumber, coin: Digest) -> Digest:
    """What orders the auditors of `step`, and seeds their replays: B_t, or a name known to all."""
    return step_coin(job, step, coin) or digest("late coin", job + step.to_bytes(8, "big"))
