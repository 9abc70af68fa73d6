"""Offers, jobs, auction, pricing and ledger as values and decisions. Pure."""
