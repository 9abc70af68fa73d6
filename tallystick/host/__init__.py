"""Runs coordinators of hosted jobs; works through the API alone."""
