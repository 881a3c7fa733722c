"""The coordinator of a region: one machine, whose parts own their fields (`coordinator.py`)."""
