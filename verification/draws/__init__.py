"""Who is drawn by which coin, how often, and who audits a draw."""
