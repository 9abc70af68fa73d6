"""Codecs: the bytes that stand for a tensor on its way between peers, and the numbers they mean."""
