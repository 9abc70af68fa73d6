"""Which jobs of local steps can be sealed? Pure."""

from contracts.terms.errors import Refused
from contracts.terms.messages import JobSpec


def check_local_steps(spec: JobSpec) -> None:
    """Refuse a job whose rounds never have a quorum.

    Raises:
        Refused: with what would fit.
    """
    batch = spec.batch
    if batch.local is None:
        return
    owners = batch.peers_per_stage + batch.spares
    if batch.local.quorum > owners:
        raise Refused(
            f"local.quorum is {batch.local.quorum}, and the job has {owners} peers, spares "
            "included: lower it, or have more peers",
            quorum=batch.local.quorum,
            would_fit=owners,
        )
