"""What is kept of Spark's words when a task failed."""

from spark_integration.core.jobs import task_error
from spark_integration.limits import ERROR_TEXT_CHARS_MAX

CRASHED = """An error occurred while calling o76.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (10.0.0.1 executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""

RAISED = """An error occurred while calling o104.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 in stage 2.0: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 10, in main
    process()
  File "mine.py", line 3, in split
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""


def test_of_a_crashed_worker_the_innermost_message_is_kept() -> None:
    assert task_error(CRASHED) == "Python worker exited unexpectedly (crashed)."


def test_of_an_exception_the_python_traceback_is_kept() -> None:
    text = task_error(RAISED)
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "\tat " not in text


def test_a_text_of_another_shape_is_kept_but_bounded() -> None:
    assert task_error("SparkContext was shut down") == "SparkContext was shut down"
    assert len(task_error("x" * 1_000_000)) == ERROR_TEXT_CHARS_MAX
    assert task_error("") == ""
