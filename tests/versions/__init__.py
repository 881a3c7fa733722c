"""Tests with other versions than the pinned ones: older PySpark, and the lower bounds of everything else."""
