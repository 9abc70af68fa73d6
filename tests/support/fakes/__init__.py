"""In-memory twins of the chain, of what stands beside the market, and of the ports of training."""
