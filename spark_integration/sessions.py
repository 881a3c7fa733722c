"""What `run` and `register` have to know of a session before they use it: whose it is, and which Python its
processes are where nobody said so.
"""

import os
import sys

from pyspark.sql import SparkSession

from spark_integration.core.slots import SparkMaster, read_master
from spark_integration.errors import ConnectSessionError


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a client of Spark Connect. Imports nothing of that: it may not be installed."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def master_of(spark: SparkSession) -> SparkMaster:
    """Where the session's tasks run. Raises ConnectSessionError."""
    if is_connect(spark):
        raise ConnectSessionError(
            "a region needs a session that submits jobs, and this is one of Spark Connect"
        )
    return read_master(spark.sparkContext.master, cores=os.cpu_count() or 1)


def use_this_python(spark: SparkSession, master: SparkMaster) -> None:
    """On this machine alone, let executors be the driver's own Python, unless somebody said which.

    Spark's default is whatever `python3` is on PATH, which is not that of a virtual environment called by its
    path; the same Python is right for the session's other jobs too.
    """
    said = "PYSPARK_PYTHON" in os.environ or spark.conf.get("spark.pyspark.python", None) is not None
    if master.one_machine and not said:
        spark.sparkContext.pythonExec = sys.executable


def use_in_this_thread(spark: SparkSession) -> None:
    """Let this thread write with sources written in Python. Spark looks for them in the session that is
    active in the thread, which is one only where the session was made.
    """
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001  # no public way to say it
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
