"""What operators keep: keys, values, rows that wait, files; in memory, on disk, and in checkpoints."""
