"""What to keep of the text in which Spark wraps a task's failure. Pure.

Spark's message holds the cause several times, each with Java's stack below it. Wanted are, in this order: the
Python traceback of the task (it names the user's line), or else the innermost message of the failure.
"""

import re

from spark_integration.limits import ERROR_TEXT_CHARS_MAX

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n|\n\tat |\Z)", re.S)
_JAVA_STACK = re.compile(r"\n(?:\tat |\t\.\.\. |Caused by: |Driver stacktrace:).*", re.S)
_LOST_TASK = re.compile(r"Lost task [^:]*: (?:[\w.$]+(?:Exception|Error): )?(.*)", re.S)


def task_error(message: str) -> str:
    """The part of a failed job's message that says what went wrong in the task, bounded in length."""
    if traceback := _TRACEBACK.search(message):
        return traceback[0].strip()[-ERROR_TEXT_CHARS_MAX:]
    text = _JAVA_STACK.sub("", message).strip()
    if lost := _LOST_TASK.search(text):
        text = lost[1].strip()
    return text[:ERROR_TEXT_CHARS_MAX]
