"""Examples, and the demo that runs one of them under faults."""
