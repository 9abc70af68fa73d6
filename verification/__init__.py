"""How we know that the work was done: coin, draws, verdicts and the audit file."""
