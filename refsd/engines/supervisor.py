"""The process between refsd and the programs that it runs: it starts one at a time and ends all that one started.

supervised.py runs this file as `python -I -S supervisor.py SOCKET`, a descriptor. Over that socket it is asked:

    8 bytes  length n, little-endian, with two descriptors beside: the program's stdin, its stdout and stderr
    n bytes  (command, working folder, environment, most bytes in one file), as marshal writes them
    8 zeros  end the program now

and answers in lines: "started PID"; then "refused ERRNO" if the program cannot be executed; or, when neither the
program nor anything that it started is left, "ended CODE", a code as subprocess.Popen.returncode has it. When the
socket closes, because refsd is done or dead, the supervisor ends the program and itself.

On Linux it is a "child subreaper" (prctl(2)): a daemon that leaves its session and loses its parent becomes a child
of the supervisor, not of init. Elsewhere only the program's process group is ended.
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
_PATIENCE = 4.0  # seconds in which killed processes must vanish; supervised.py waits a little longer


class Wanted(NamedTuple):
    """What to run. stdin, output: descriptors"""

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
    """The next program to run; None when refsd is gone."""
    while True:
        size, descriptors, _, _ = socket.recv_fds(refsd, 8, 2)
        if not size:
            return None
        if not descriptors:
            continue  # "end it", of a program that has ended meanwhile
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        message = refsd.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
        return Wanted(*marshal.loads(message), *descriptors)


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child ends."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def _run(wanted: Wanted, refsd: socket.socket, woken: int) -> None:
    told, tell = os.pipe()
    released, release = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(release)
        _become(wanted, released, tell)
    for descriptor in (wanted.stdin, wanted.output, tell, released):
        os.close(descriptor)
    # refsd knows whom to kill before the program can do us any harm.
    refsd.sendall(b"started %d\n" % program)
    os.close(release)
    refusal = os.read(told, 16)  # exec closes the other end unwritten
    os.close(told)
    code = _end(program, None if refusal else _wait(program, refsd, woken))
    refsd.sendall(b"refused %s\n" % refusal if refusal else b"ended %d\n" % code)


def _become(wanted: Wanted, released: int, tell: int) -> NoReturn:
    """Turn this process into the program, in a session of its own, once `released` closes; else tell the errno."""
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
    """Let no file grow beyond so many bytes. SIGXFSZ stays ignored: such a write is an error, and kills nobody."""
    given = [limit for limit in resource.getrlimit(resource.RLIMIT_FSIZE) if limit != resource.RLIM_INFINITY]
    limit = min([most, *given])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _wait(program: int, refsd: socket.socket, woken: int) -> int | None:
    """Wait for the program's end -> its code; None where refsd wants it ended first, or is gone."""
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
    """Children that have ended, with their codes; and whether any are left."""
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
    """Kill the program's process group and all descendants, until none is left -> the program's code."""
    until = time.monotonic() + _PATIENCE
    _kill(os.killpg, program)
    while True:
        ended, left = _reap()
        code = ended.get(program, code)
        if not left or time.monotonic() > until:
            return -signal.SIGKILL if code is None else code
        descendants = _descendants()
        # A whole group dies at one blow: where one forks again and again, killing one by one comes too late.
        for group in set(descendants.values()) - {os.getpgrp()}:
            _kill(os.killpg, group)
        for process in descendants:
            _kill(os.kill, process)
        time.sleep(0.001)


def _kill(kill, whom: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(whom, signal.SIGKILL)


def _descendants() -> dict[int, int]:
    """Every process that comes from this one and lives -> its process group. Empty where there is no /proc."""
    parents, groups = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name in brackets may hold anything, brackets and blanks too.
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
