"""What holds for every test, set before torch is imported and inherited by the processes that tests start.

One thread for each worker: several that share the cores wait for each other, and small tensors take ten times as long.
No connection leaves the machine: whoever tries one fails.
"""

import os
import socket
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

_connect = socket.socket.connect


def connect_here(self: socket.socket, address: Any) -> None:
    if self.family != getattr(socket, "AF_UNIX", None) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"a connection to {address}")
    _connect(self, address)


socket.socket.connect = connect_here  # type: ignore[method-assign]
