"""Gradients of all units are averaged in every step."""
