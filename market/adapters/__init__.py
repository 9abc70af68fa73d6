"""Postgres, Redis, chain, blobs: translate types and errors, hold no policy."""
