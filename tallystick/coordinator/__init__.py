"""The coordinator's process: journal, wallet and stream around the pure step."""
