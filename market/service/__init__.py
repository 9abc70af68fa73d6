"""One use case per module, one transaction each; owns the ports that adapters fill."""
