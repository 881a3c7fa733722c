"""What the Spark integration decides, without Spark: slots, attempts, error texts, progress. Pure, no I/O."""
