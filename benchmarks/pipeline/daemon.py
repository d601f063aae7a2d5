"""The daemon that forks Spark's Python workers, for runs in which processor time is counted.

PySpark's own ignores the signal of a child's end, and the kernel then forgets how much time the child took: it would be taken
for somebody else's. Here workers that have ended stay until their daemon ends too, and their time is added to ours.
"""

from signal import SIGURG

from pyspark import daemon

if __name__ == "__main__":
    vars(daemon)["SIGCHLD"] = SIGURG  # an unused signal, so that ignoring it has no effect
    daemon.manager()
