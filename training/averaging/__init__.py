"""Sums inside a stage: which parts, in which order, and the bytes that come out."""
