"""What the server does with each request, and with the disk's reports about it: one file for each kind."""
