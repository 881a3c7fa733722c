"""Properties of a Spark session that `run` and `register` need: its kind, its master, and its Python."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from dos_tls import VARIABLES, tls_of_environment
from spark_integration.core.session_checks import SparkMaster, read_master
from spark_integration.errors import ConnectSessionError, SessionStoppedError


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect client. Does not import Spark Connect, which may not be installed."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def need_own_session(spark: SparkSession, what: str) -> None:
    """Raise ConnectSessionError for Spark Connect. what: a call on a frame, with its verb."""
    if is_connect(spark):
        raise ConnectSessionError(
            f"{what} needs a session that can submit jobs, but this is a Spark Connect session",
            remedy="run this program with a session of its own, as spark-submit does; here a frame can be"
            " divided, and explain() shows how",
        )


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session was stopped, or is being stopped, or its JVM is gone. Not for Spark Connect."""
    try:
        context = spark.sparkContext._jsc  # noqa: SLF001  # PySpark has no public API for this
        return context is None or bool(context.sc().isStopped())
    except Exception:  # what PySpark raises depends on how far it was stopped
        return True


def check_session(spark: object) -> None:
    """Raise TypeError for what is no Spark session, SessionStoppedError for one that was stopped."""
    if isinstance(spark, SparkSession):
        if is_stopped(spark):
            raise SessionStoppedError("this Spark session was stopped")
    elif not type(spark).__module__.startswith("pyspark.sql.connect."):
        raise TypeError(
            f"the first argument is a SparkSession, got {type(spark).__name__}: make one with"
            " SparkSession.builder.getOrCreate()"
        )


def master_of(spark: SparkSession) -> SparkMaster:
    """Return where the session's tasks run. Raises ConnectSessionError, and as `check_session`."""
    check_session(spark)
    if is_connect(spark):
        raise ConnectSessionError(
            "a region needs a session that can submit jobs, but this is a Spark Connect session"
        )
    return read_master(spark.sparkContext.master, cores=os.cpu_count() or 1)


def use_this_python(spark: SparkSession, master: SparkMaster) -> None:
    """Make executors on this machine use the driver's Python, unless another one was configured."""
    # Spark's default is the `python3` on PATH, which is not the Python of a virtual environment that was
    # called by its path. The driver's Python is also right for the session's other jobs.
    is_configured = "PYSPARK_PYTHON" in os.environ or spark.conf.get("spark.pyspark.python", None) is not None
    if master.one_machine and not is_configured:
        spark.sparkContext.pythonExec = sys.executable


def use_tls_of_driver(spark: SparkSession) -> None:
    """Make the Python processes of this session use the driver's TLS settings, if it has some; each host has
    the files. Raises TlsSettingsError, and ConnectSessionError: a server's processes have its own
    environment.
    """
    tls = tls_of_environment()
    if tls is None:
        return
    if is_connect(spark):
        raise ConnectSessionError(
            "DOS_TLS is set here, but the Python processes of a Spark Connect session have the environment of"
            " its server: set DOS_TLS for the Spark Connect server, and unset it here"
        )
    # It applies to what is passed to Spark from now on, also if the driver's variables are unset later:
    # nothing changes to plain text.
    environment = spark.sparkContext.environment
    for name in VARIABLES:
        environment.pop(name, None)
    environment.update(tls.as_variables())


@contextmanager
def used_in_this_thread(spark: SparkSession) -> Iterator[None]:
    """As `use_in_this_thread`, until the block ends. No effect for Spark Connect."""
    if is_connect(spark):
        yield
        return
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001  # no public API for this
    before = sessions.getActiveSession()
    use_in_this_thread(spark)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def use_in_this_thread(spark: SparkSession) -> None:
    """Enable this thread to write with data sources written in Python."""
    # Spark looks for them in the active session of the thread, and a thread has one only if it created it.
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001  # no public API for this
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
