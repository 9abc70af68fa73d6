"""Whole replicas that take many steps each and exchange differences: DiLoCo, replayable."""
