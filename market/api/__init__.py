"""The HTTP API: parse, call one use case, answer."""
