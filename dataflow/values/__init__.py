"""Values of Python in columns: which of them a column takes, and what is read back."""
