"""How far a replay is from the claim, and how far an honest one may be."""
