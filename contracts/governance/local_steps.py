"""Which jobs of local steps can be sealed and checked? Pure.

Source of the limit: the table of honest replays in training/strategies/local/README.md. On another
class of CPU a replay stays near a claim for some 100 inner steps; after 200 it is as far from it as
a stranger's, so nobody could tell an honest owner from a liar.
"""

from contracts.terms.errors import Refused
from contracts.terms.messages import JobSpec

MOST_CHECKED_STEPS = 100
"""Inner steps in a claim of a checked job."""


def check_local_steps(spec: JobSpec) -> None:
    """Refuse a job whose claims no honest replay can follow, or whose rounds never have a quorum.

    Raises:
        Refused: with what would fit.
    """
    batch = spec.batch
    if batch.local is None:
        return
    steps = batch.local.inner_steps * batch.local.segments
    if spec.rules.audit is not None and steps > MOST_CHECKED_STEPS:
        raise Refused(
            f"a claim has {steps} inner steps, and honest replays on other CPUs follow only "
            f"{MOST_CHECKED_STEPS}: lower local.inner_steps or local.segments, or have the job "
            "unchecked",
            inner_steps=steps,
            would_fit=MOST_CHECKED_STEPS,
        )
    owners = batch.peers_per_stage + batch.spares
    if batch.local.quorum > owners:
        raise Refused(
            f"local.quorum is {batch.local.quorum}, and the job has {owners} peers, spares "
            "included: lower it, or have more peers",
            quorum=batch.local.quorum,
            would_fit=owners,
        )
