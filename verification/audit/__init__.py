"""The audit file of a job: what it holds, and the check of all of it."""
