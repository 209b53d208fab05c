"""A process beside the ranks of a machine that reports a rank which cannot do so itself.

If a rank is killed, mpiexec at once kills the others as well. It does not kill the watcher.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
from typing import Any


def connect(name: str, neighbours: Any) -> socket.socket:
    """Connect this rank to the watcher of its machine, which the first rank on the machine starts.
    Returns the socket: the rank must send a byte through it before it ends, to show that it was not
    killed.

    name        what the watcher's report calls this rank
    neighbours  mpi4py's communicator of the ranks on this machine, each of which calls `connect`
    """
    server = socket.create_server(("127.0.0.1", 0), backlog=neighbours.size)
    if neighbours.rank == 0:
        command = [sys.executable, "-I", "-S", __file__]
        subprocess.Popen(command, stdin=server.fileno(), start_new_session=True)
    rank = socket.create_connection(neighbours.bcast(server.getsockname()))
    rank.send(name.encode())
    rank.recv(1)  # the watcher confirms the connection
    neighbours.Barrier()  # the watcher ends as soon as a rank does: first let all connect
    return rank


def watch(server: socket.socket) -> str:
    """Accept the connections of the ranks to the socket `server`, and wait until one breaks or a
    rank sends a byte. A broken connection means that its rank crashed or was killed: return a
    report that names it. A byte means that the rank is about to end by itself: return an empty
    text."""
    watched = selectors.DefaultSelector()
    watched.register(server, selectors.EVENT_READ)
    while True:
        broken = []
        for key, _ in watched.select():  # in the order of events, where the system keeps it
            if key.data is None:
                rank, _ = server.accept()
                watched.register(rank, selectors.EVENT_READ, rank.recv(64).decode())
                rank.send(b".")
            elif key.fileobj.recv(1):  # type: ignore[union-attr]
                return ""
            else:
                broken.append(key.data)
        if broken:
            return f"minimha: {broken[0]} crashed or was killed: did memory run out?\n"


if __name__ == "__main__":
    sys.stderr.write(watch(socket.socket(fileno=0)))
