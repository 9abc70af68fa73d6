"""The router's loop: which peer computes which unit of a step. No torch, no chain, no state."""
