"""What is stored: the records of checkpoints, inputs, outputs, registers and backups, and which of them
count.
"""
