"""How we know that the work was done: beacon, draws, verdicts and the audit file."""
