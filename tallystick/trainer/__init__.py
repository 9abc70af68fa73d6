"""The trainer's process: drives the units of a job through its stages."""
