"""Which servers are the store: making it, replacing and adding members, a person's word."""
