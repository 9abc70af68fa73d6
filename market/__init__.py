"""Who works for whom at what price, and the HTTP API over it."""
