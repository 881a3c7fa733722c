"""Archives: sealed segments of chains in an S3 bucket, which can be read without any server.

To read the code, start with `core/archive_manifest.py`, then `bucket.py`, `archiving.py` and `reading.py`.
"""
