"""Markets over a real Postgres, for whatever speaks with one."""

from tests.support.databases import databases, taken

__all__ = ["databases", "taken"]
