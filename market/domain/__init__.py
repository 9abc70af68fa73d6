"""Offers, jobs, clearing, lines of pay and slashes as values and decisions. Pure."""
