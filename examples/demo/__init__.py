"""`./run demo`: the word count example on three servers and Spark, with processes killed, and a verdict."""
