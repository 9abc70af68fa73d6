"""Rounds of a job as a state machine, whatever its strategy."""
