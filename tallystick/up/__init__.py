"""Postgres, Redis, chain, gateway, API, worker, beat and host, supervised on one machine."""
