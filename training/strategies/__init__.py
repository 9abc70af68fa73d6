"""How the peers of a job train together: what a round deals, when it closes, what it computes."""
