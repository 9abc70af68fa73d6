"""Adversaries that play the code of real workers, through `training.worker.ports.Behaviour`."""
