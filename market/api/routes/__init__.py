"""One module per noun; each route parses, calls one use case and answers."""
