"""Archives: sealed segments of chains in an S3 bucket, which can be read without any server."""
