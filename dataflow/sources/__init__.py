"""Sources: where rows enter a region, from splits that can be replayed."""
