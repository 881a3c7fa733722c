"""The tests of Spark with older versions of PySpark than the pinned one."""
