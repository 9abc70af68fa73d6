"""Seals, verdicts and prices become vesting, pay and limits. Pure."""
