"""Shared vocabulary: ids, amounts, errors, messages, digests, sum trees, signatures. Pure."""
