"""The control loop of a job: membership, steps, seals. No torch, no chain."""
