"""Extracts the cause from the text with which Spark wraps the failure of a task. Pure: no I/O.

Spark's message contains the cause several times, each followed by a Java stack trace. The wanted part is the
Python traceback of the task, which names the user's line, or otherwise the innermost failure message.
"""

import re

from spark_integration.limits import ERROR_TEXT_CHARS_MAX

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n|\n\tat |\Z)", re.S)
_JAVA_STACK = re.compile(r"\n(?:\tat |\t\.\.\. |Caused by: |Driver stacktrace:).*", re.S)
_LOST_TASK = re.compile(r"Lost task [^:]*: (?:[\w.$]+(?:Exception|Error): )?(.*)", re.S)


def task_error(message: str) -> str:
    """Return the part of a failed job's message that describes the task's failure, bounded in length."""
    if traceback := _TRACEBACK.search(message):
        return traceback[0].strip()[-ERROR_TEXT_CHARS_MAX:]
    text = _JAVA_STACK.sub("", message).strip()
    if lost := _LOST_TASK.search(text):
        text = lost[1].strip()
    return text[:ERROR_TEXT_CHARS_MAX]
