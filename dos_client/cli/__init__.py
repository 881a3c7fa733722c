"""`dos ls`, `get`, `append`, `stat`, `ping` and `dos store ...`: arguments in, text or JSON out."""
