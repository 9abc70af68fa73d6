"""The corpus as content-hashed shards, and which rows each unit holds. No torch."""
