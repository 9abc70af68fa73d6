"""In-memory twins of training's ports, and a transport with scripted faults. For tests."""
