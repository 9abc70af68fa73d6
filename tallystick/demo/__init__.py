"""One command: services, provider, job, settlement, claim, refund, audit, report."""
