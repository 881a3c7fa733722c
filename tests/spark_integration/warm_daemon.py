"""Spark's daemon, which forks its Python processes, with what these import imported already: it would take
each worker of a region and each task of the data source a second of a core.

The setting `spark.python.daemon.module` names this module in the sessions that tests share, and in
`through_program`. What runs on a cluster, through Connect or by `spark-submit` has Spark's own.
"""

import gc
import importlib
import sys
from typing import Final

from pyspark.daemon import manager

PRELOADED: Final = (
    *("pandas", "pyarrow.parquet", "dataflow.worker.companion", "dataflow.worker.process"),
    *("spark_integration.data_source", "spark_integration.reading.readers", "spark_integration.worker_task"),
    "spark_integration.writing.staging",
)

if __name__ == "__main__":
    # Spark has a daemon for each kind of Python process: the others, which plan and commit, fork one or two.
    for name in PRELOADED if sys.argv[1] == "pyspark.worker" else ():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    manager()
