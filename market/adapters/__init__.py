"""Postgres, Redis, Celery, chain, blobs: translate types and errors, hold no policy."""
