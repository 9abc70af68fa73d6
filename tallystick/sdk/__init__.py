"""The market's API for programs: a typed client that raises our own errors."""
