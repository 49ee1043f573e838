"""Fork server for Spark's Python workers: they begin with all modules that each would import for a second or more.

    with forking_python(folder) as program: …  # the path of a program to start in python's place: `-m MODULE ARGUMENTS`

The program hands its arguments, environment, folder and standard streams to the server, and ends when the forked
process ends. If the program is killed, so is the forked process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "epochlog.api",
    "epochlog.spark.catalog",
    "epochlog.spark.session",
)
KILLED = 70
"""Exit code of the program if the forked process ended without one."""
PROGRAM = """#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(request)
code = connection.recv(1)
os._exit(code[0] if code else {killed})
"""


@contextlib.contextmanager
def forking_python(folder: Path) -> Iterator[str]:
    """Run a fork server and yield the path of the program. folder: an existing folder, where its socket lies too."""
    address = str(folder / "fork.sock")
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # Spark's workers agree on the hashes of texts
    command = [sys.executable, __file__, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        program = folder / "python"
        program.write_text(
            PROGRAM.format(python=os.path.realpath(sys.executable), address=address, killed=KILLED), "utf-8"
        )
        program.chmod(0o755)
        yield str(program)
        server.stdin.close()


def serve(address: str) -> None:
    """Fork a process for each connection, until standard input ends. No thread runs here: a fork would lose it."""
    for module in PRELOADED:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = become(connection)
            with contextlib.suppress(OSError):  # the program was killed
                connection.sendall(bytes([code & 255]))
            os._exit(code & 255)
        connection.close()


def become(connection: socket.socket) -> int:
    """Run what a program was started for, in its environment, folder and standard streams, and return the exit code."""
    header, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, request = int.from_bytes(header, "big"), b""
    while len(request) < size and (part := connection.recv(size - len(request))):
        request += part
    if not header or len(request) < size:  # the program was killed
        return KILLED
    arguments, environment, folder = json.loads(request)
    assert arguments[0] in {"-m", "-c"}, arguments
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.argv = arguments[1:]
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    try:
        if arguments[0] == "-c":
            return subprocess.call([sys.executable, *arguments])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    return 0


def _end_with(connection: socket.socket) -> None:
    """End this process when its program has been killed."""
    if connection.recv(1) == b"":
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(sys.argv[1])
