"""In-memory twins of the chain and of services beside the market. For tests."""
