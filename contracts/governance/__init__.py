"""Seals, verdicts and prices become vesting, pay roots and settlements. Pure."""
