"""What a page or a screen shows, computed from readings. Pure: no I/O."""
