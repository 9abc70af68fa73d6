"""One command: services, providers, job, claims, slash, close, audit, report."""
