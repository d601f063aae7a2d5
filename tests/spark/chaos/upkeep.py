"""A process of its own that compacts and vacuums an archive again and again: `python -m tests.spark.chaos.upkeep ARCHIVE`.

It goes on until it is killed, amid a compaction as well as anywhere else.
"""

import sys
import time
from datetime import timedelta

from ropewalk.pipeline.archive import compact, vacuum
from tests.spark.chaos.child import end_with_the_test, report

PAUSE = 0.5
# Shorter than the server's list of files is old, so that readers do meet files that are gone.
RETENTION = timedelta(seconds=1)


def main(root: str) -> None:
    end_with_the_test()
    while True:
        done = compact(root)
        gone = vacuum(root, RETENTION)
        report("tended", f"{done.files_before} {done.files_after} {done.rows} {len(gone)}")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1])
