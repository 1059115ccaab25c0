"""The supervisor process: it starts programs for refsd, one at a time, and kills all their descendants.

supervised.py runs this file as `python -I -S supervisor.py SOCKET`, where SOCKET is a descriptor. A request is

    8 bytes  length n, little-endian, sent with two descriptors: the program's stdin, and its stdout and stderr
    n bytes  (command, working folder, environment, limit in bytes of any file), serialised by marshal
    8 zeros  kill the program now

The answers are lines. "started PID" comes first. "refused ERRNO" follows if the program cannot be executed;
otherwise "ended CODE" follows once the program and all its descendants have ended, with CODE as in
subprocess.Popen.returncode. When the socket closes, because refsd has finished or died, the supervisor kills the
program and exits.

On Linux the supervisor is a "child subreaper" (prctl(2)): a daemon that leaves its session and loses its parent
becomes a child of the supervisor, not of init. On other systems only the program's process group is killed.
"""

import contextlib
import ctypes
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import NamedTuple, NoReturn

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 4.0  # seconds in which killed processes must disappear; supervised.py waits a little longer


class Wanted(NamedTuple):
    """A request to run a program. stdin, output: descriptors"""

    command: list[bytes]
    folder: bytes
    environment: dict[bytes, bytes]
    max_file: int
    stdin: int
    output: int


def main(descriptor: int) -> None:
    """Run programs until the socket closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken = _wake_on_child()
    with socket.socket(fileno=descriptor) as refsd:
        os.set_inheritable(descriptor, False)
        while wanted := _receive(refsd):
            _run(wanted, refsd, woken)


def _receive(refsd: socket.socket) -> Wanted | None:
    """Wait for the next request; None if refsd has closed the socket."""
    while True:
        size, descriptors, _, _ = socket.recv_fds(refsd, 8, 2)
        if not size:
            return None
        if not descriptors:
            continue  # a request to kill a program that has already ended
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        message = refsd.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
        return Wanted(*marshal.loads(message), *descriptors)


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def _run(wanted: Wanted, refsd: socket.socket, woken: int) -> None:
    reading, tell = os.pipe()
    released, release = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(release)
        _become(wanted, released, tell)
    for descriptor in (wanted.stdin, wanted.output, tell, released):
        os.close(descriptor)
    # Tell refsd the PID before the program can run and kill this process.
    refsd.sendall(b"started %d\n" % program)
    os.close(release)
    refusal = os.read(reading, 16)  # b"" if exec succeeded: it closes the other end
    os.close(reading)
    code = _end(program, None if refusal else _wait(program, refsd, woken))
    refsd.sendall(b"refused %s\n" % refusal if refusal else b"ended %d\n" % code)


def _become(wanted: Wanted, released: int, tell: int) -> NoReturn:
    """Wait until `released` closes, then exec the program in a new session; write a failure's errno to `tell`."""
    try:
        os.setsid()
        os.read(released, 1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        _limit_files(wanted.max_file)
        for there, here in ((wanted.stdin, 0), (wanted.output, 1), (wanted.output, 2)):
            os.dup2(there, here)
        os.chdir(wanted.folder)
        os.execvpe(wanted.command[0], wanted.command, wanted.environment)
    except OSError as error:
        os.write(tell, b"%d" % error.errno)
    finally:
        os._exit(127)


def _limit_files(most: int) -> None:
    """Limit files to `most` bytes. SIGXFSZ stays ignored, so a write beyond that fails but kills no process."""
    given = [limit for limit in resource.getrlimit(resource.RLIMIT_FSIZE) if limit != resource.RLIM_INFINITY]
    limit = min([most, *given])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _wait(program: int, refsd: socket.socket, woken: int) -> int | None:
    """Wait for the program's end. -> its code; None if refsd asks to kill it or closes the socket"""
    poll = select.poll()
    poll.register(refsd, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            ended, _ = _reap()
            if program in ended:
                return ended[program]
        if refsd.fileno() in ready:
            return None


def _reap() -> tuple[dict[int, int], bool]:
    """Collect ended children. -> PID -> exit code, and True if any child still runs"""
    ended = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if child == 0:
            return ended, True
        ended[child] = os.waitstatus_to_exitcode(status)


def _end(program: int, code: int | None) -> int:
    """Kill the program's process group and all descendants until none is left. -> the program's code"""
    until = time.monotonic() + _PATIENCE
    _kill(os.killpg, program)
    while True:
        ended, left = _reap()
        code = ended.get(program, code)
        if not left or time.monotonic() > until:
            return -signal.SIGKILL if code is None else code
        descendants = _descendants()
        # Kill whole groups first: a process that keeps forking would outrun killing one by one.
        for group in set(descendants.values()) - {os.getpgrp()}:
            _kill(os.killpg, group)
        for process in descendants:
            _kill(os.kill, process)
        time.sleep(0.001)


def _kill(kill, whom: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(whom, signal.SIGKILL)


def _descendants() -> dict[int, int]:
    """PID of each living descendant of this process -> its process group. Empty on systems without /proc."""
    parents, groups = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The process name, in brackets, may itself contain brackets and blanks.
                state, parent, group = file.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue
        parents[int(name)] = int(parent)
        if state != b"Z":
            groups[int(name)] = int(group)
    found, new = set(), {os.getpid()}
    while new:
        new = {process for process, parent in parents.items() if parent in new}
        found |= new
    return {process: groups[process] for process in found if process in groups}


if __name__ == "__main__":
    main(int(sys.argv[1]))
