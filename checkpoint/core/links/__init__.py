"""What the processes of a region send to each other, and each end's rules for it."""
