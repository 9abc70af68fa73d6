"""Who is drawn by which beacon, how often, and who audits a draw."""
