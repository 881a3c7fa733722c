"""Which servers form the store: its creation, replaced and added members, forced recovery."""
