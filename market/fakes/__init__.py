"""In-memory twins of the market's database, chain and other services. For tests."""
