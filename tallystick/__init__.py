"""The front door: command line, SDK, one-machine services, processes that join the rooms."""
