"""How work is cut into items, and which of them come next: one folder a strategy."""
