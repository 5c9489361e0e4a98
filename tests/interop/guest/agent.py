"""Runs in the guest: one command a TCP connection, which is the command's input and output.

The first line is the command's words as a JSON list.  When the command has ended, a NUL and its
exit code follow what it wrote, and the connection is closed.  A host that closes first kills it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading

PORT = 1023


def serve(connection):
    with connection:
        words = json.loads(connection.makefile("rb", buffering=0).readline())
        try:
            command = subprocess.Popen(
                words,
                stdin=connection,
                stdout=connection,
                stderr=connection,
                start_new_session=True,
            )
        except OSError as error:
            connection.sendall(f"{error}\n\0127".encode())
            return
        threading.Thread(target=kill_when_closed, args=(connection, command), daemon=True).start()
        code = command.wait()
        with contextlib.suppress(OSError):  # the host has gone
            connection.sendall(f"\0{code}".encode())
            connection.shutdown(socket.SHUT_RDWR)


def kill_when_closed(connection, command):
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)


listener = socket.create_server((sys.argv[1], PORT))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
