"""One worker process: the circuit thread, the link thread, and what they exchange."""
