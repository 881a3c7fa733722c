"""What tests need of the installed PySpark: `./run versions` runs some with older ones."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from typing import ParamSpec

import pytest

from spark_integration.versions import pyspark_has

P = ParamSpec("P")


def refused_before(feature: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Return the decorator of a test of what older PySparks lack, as `versions.ADMISSION_CONTROL`.

    With such a PySpark, the same test requires the refusal, which names both versions.
    """

    def decorated(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            refusal = rf"needs PySpark {feature} or newer, but {version('pyspark')} is installed \(install"
            lacks = pytest.raises(Exception, match=refusal)
            with nullcontext() if pyspark_has(feature) else lacks:
                test(*args, **kwargs)

        return run

    return decorated
