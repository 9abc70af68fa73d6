"""One wrapper per contract: reads at a pinned block, writes as encoded calls. No policy."""
