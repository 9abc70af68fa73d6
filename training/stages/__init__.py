"""One stage at work: forward, backward, the optimiser, its state and checkpoints."""
