"""Wallets, session keys and the files that keep them; the only place that signs."""
