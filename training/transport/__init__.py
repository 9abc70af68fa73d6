"""Tensor RPC between peers: see README.md; import the modules themselves."""
