"""Archives: sealed segments of chains in a bucket of S3, from which they are read with no server alive.

Start reading at `core/archive_manifest.py`, then `bucket.py`, `archiving.py`, `reading.py`.
"""
