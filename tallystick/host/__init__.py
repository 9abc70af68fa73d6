"""Runs coordinators and trainers of hosted jobs; works through the API alone."""
