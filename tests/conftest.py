"""One thread for each worker: several that share the cores wait for each other, and small tensors take ten times as
long. Set before torch is imported, and inherited by the processes that tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
