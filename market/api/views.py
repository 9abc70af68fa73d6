"""Names that have moved to `market.service`; until their users are merged."""

from market.bodies import EpochSummary
from market.service.find_job import find_job
from market.service.reputation import reputation_view
from market.service.show_jobs import job_outcome, job_view

__all__ = ["epoch_summary", "job_outcome", "job_row", "job_view", "reputation_view"]

epoch_summary = EpochSummary.of
job_row = find_job
