"""The decoder, whole or cut into stages, and its first weights."""
