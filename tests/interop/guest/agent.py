"""Runs in the guest: a command, or a :class:`peer.Peer`, for each TCP connection.

The first line is a JSON list of words.  A command has the connection as its input and output; when
it has ended, a NUL and its exit code follow what it wrote.  The one word ``peer`` is a queue pair
to be driven: it starts at once, for its libraries are here already.  A host that closes the
connection ends what it began.
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

import peer

PORT = 1023


def serve(connection):
    with connection, connection.makefile("rwb") as stream:
        words = json.loads(stream.readline())
        if words == ["peer"]:
            peer.serve(stream)
            return
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


def kill_when_closed(connection, command):
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that serve
    listener = socket.create_server((sys.argv[1], PORT))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            serve(connection)
            os._exit(0)
        connection.close()


main()
