"""The decisions of the Spark integration, without Spark: slots, attempts, options, offsets. Pure: no I/O."""
