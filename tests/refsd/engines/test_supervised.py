"""Programs under a supervisor: how they end, and that nothing of them is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from refsd.engines import supervised
from refsd.engines.supervised import MAX_FILE, Supervised, _dismiss, died, ending, last_words, tail
from refsd.golden.engine import EngineDied, EngineFailure


@pytest.fixture(scope="module")
def program():
    with tempfile.TemporaryFile() as log:
        yield Shell(log)


class Shell:
    """A supervisor for lines of sh."""

    def __init__(self, log):
        self.supervised, self.log = Supervised(), log

    def start(self, line, environment=None, max_file=MAX_FILE):
        command = ["/bin/sh", "-c", line]
        self.supervised.start(command, Path("/"), environment or {"PATH": "/usr/bin:/bin"}, max_file, self.log)

    def run(self, line, timeout=30.0, **how):
        self.start(line, **how)
        try:
            return self.supervised.wait(timeout)
        finally:
            self.supervised.end()


def gone(pid):
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_one_supervisor_runs_one_program_after_another(program):
    assert [program.run(f"exit {n}") for n in (0, 1, 77, 255)] == [0, 1, 77, 255]
    first = program.supervised._process.pid
    assert program.run("kill -9 $$") == -9
    assert program.supervised._process.pid == first


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (134, "ended with exit code 134"),
        (-signal.SIGSEGV, "ended by SIGSEGV"),
        (-signal.SIGRTMIN, "ended by SIGRTMIN"),
        (-(signal.SIGRTMIN + 1), f"ended by signal {signal.SIGRTMIN + 1}"),
        (-200, "ended by signal 200"),
    ],
)
def test_an_ending_in_words(code, words):
    assert ending(code) == words


def test_the_environment_and_the_folder_are_those_given(program, tmp_path):
    program.log.truncate(0)
    program.log.seek(0)
    program.supervised.start(
        ["env"], tmp_path, {"PATH": "/usr/bin:/bin", "B\udcff": "\udcfe\n"}, MAX_FILE, program.log
    )
    assert program.supervised.wait(30.0) == 0
    program.log.seek(0)
    assert sorted(program.log.read().split(b"\n")) == [b"", b"", b"B\xff=\xfe", b"PATH=/usr/bin:/bin"]
    assert program.run("cat; pwd; ulimit -f", max_file=1 << 20) == 0  # stdin is empty
    assert last_words(tail(program.log)) in ("2048", "1024")


def test_the_descriptors_of_a_program_are_its_own(program):
    assert program.run("cd /proc/$$/fd; echo *") == 0
    assert last_words(tail(program.log)) == "0 1 2 3"  # the last is the folder that echo lists


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such"], "/no/such does not start: No such file"),
        (["/"], "/ does not start: Permission denied"),
        (["nowhere"], "nowhere does not start: No such file"),
    ],
)
def test_what_cannot_be_started(program, command, why):
    program.supervised.start(command, Path("/"), {"PATH": "/bin"}, MAX_FILE, program.log)
    with pytest.raises(EngineFailure, match=why):
        program.supervised.wait(30.0)
    program.supervised.start(["/bin/sh"], Path("/no/such"), {}, MAX_FILE, program.log)
    with pytest.raises(EngineFailure, match="sh does not start: No such file"):
        program.supervised.wait(30.0)
    assert program.run("exit 5") == 5


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("print(1)\n", 0o755, "Exec format error: it has no #! line; add one, or write its interpreter before it"),
        ("#!/bin/sh\n", 0o644, r"Permission denied: it is not executable; chmod \+x, or write its interpreter"),
        ("#! /no/such -x\n", 0o755, "the file is there, but not its interpreter, '/no/such -x'"),
        ("#!/bin/sh\r\n", 0o755, r"the file is there, but not its interpreter, '/bin/sh\\r'"),
    ],
)
def test_a_script_that_cannot_be_executed(program, tmp_path, text, mode, why):
    script = tmp_path / "engine.py"
    script.write_text(text, newline="")
    script.chmod(mode)
    program.supervised.start([str(script)], Path("/"), {"PATH": "/bin"}, MAX_FILE, program.log)
    with pytest.raises(EngineFailure, match=why):
        program.supervised.wait(30.0)


def test_what_a_program_started_is_ended_and_nothing_else(program):
    others = [subprocess.Popen(["sleep", "60"], start_new_session=new) for new in (False, True)]
    try:
        assert program.run("setsid sleep 61 & sleep 62 & (setsid sh -c 'sleep 63 & sleep 64' &) ; exit 0") == 0
        left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
        assert not any(["sleep", str(n)] in left for n in range(61, 65))
        assert all(other.poll() is None for other in others)
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_program_that_is_too_slow_is_ended(program):
    with pytest.raises(EngineDied, match=r"^no answer after 1 s$") as error:
        program.run("echo step 3 of 9; sleep 71 & setsid sleep 72; wait", timeout=1.0)
    assert error.value.log[-1] == "step 3 of 9"
    assert not any(
        p.info["cmdline"] in (["sleep", "71"], ["sleep", "72"]) for p in psutil.process_iter(["cmdline"])
    )
    assert program.run("exit 5") == 5


def test_what_looks_on_can_end_it(program):
    def look():
        raise EngineFailure("enough")

    program.start("sleep 60")
    with pytest.raises(EngineFailure, match="enough"):
        program.supervised.wait(30.0, look)
    program.supervised.end()
    assert program.run("exit 5") == 5


def test_a_supervisor_that_is_gone_is_replaced(program):
    program.run("exit 0")
    program.supervised._process.kill()
    with pytest.raises(EngineFailure, match="does not start: its supervisor ended"):
        program.run("exit 5")
    assert program.run("exit 5") == 5


def test_a_stopped_supervisor_does_not_keep_the_program_alive(program, monkeypatch, tmp_path):
    monkeypatch.setattr(supervised, "_PATIENCE", 0.2)
    note = tmp_path / "pid"
    with pytest.raises(EngineFailure, match="no answer"):
        program.run(f"echo $$ > {note}; kill -STOP $PPID; sleep 60", timeout=0.3)
    assert gone(int(note.read_text()))
    assert program.run("exit 5") == 5


def test_nothing_outlives_refsd(tmp_path):
    """refsd is killed, so that it can end nothing itself."""
    note = tmp_path / "pids"
    refsd = f"""
import sys, time
from pathlib import Path
from refsd.engines.supervised import Supervised
program = Supervised()
line = "echo $$ $PPID > {note}.part; mv {note}.part {note}; sleep 60 & setsid sleep 60"
program.start(["/bin/sh", "-c", line], Path("/"), {{"PATH": "/usr/bin:/bin"}}, 1 << 30, sys.stderr.buffer)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", refsd])
    try:
        for _ in range(3000):
            if note.exists():
                break
            time.sleep(0.01)
        pids = [int(pid) for pid in note.read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert all(gone(pid) for pid in pids)


def test_a_forgotten_supervisor_ends(program):
    forgotten = Shell(program.log)
    forgotten.start("sleep 60")
    process, group = forgotten.supervised._process, forgotten.supervised._group
    del forgotten
    assert process.poll() is not None and gone(group)


def test_last_words(program):
    program.log.truncate(0)
    program.log.seek(0)
    assert last_words(tail(program.log)) == "it said nothing"
    program.run("echo one; echo; echo ' two '; printf '\\n\\t\\n'")
    assert last_words(tail(program.log)) == "two"
    end = os.fstat(program.log.fileno()).st_size
    assert last_words(tail(program.log, end)) == "it said nothing"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            "thread 'main' panicked at src/main.rs:141:7:\nindex out of bounds: the len is 0 but the index is 3\n"
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
            "thread 'main' panicked at src/main.rs:141:7: index out of bounds: the len is 0 but the index is 3",
        ),
        (
            "thread 'main' panicked at 'no field x', engine.rs:51:9\nnote: run with `RUST_BACKTRACE=1`\n",
            "thread 'main' panicked at 'no field x', engine.rs:51:9",
        ),
        (
            "thread 'main' (71) panicked at src/main.rs:9:5:\nno kernel\nstack backtrace:\n"
            "   0: main::run\n             at ./src/main.rs:9:5\n",
            "thread 'main' (71) panicked at src/main.rs:9:5: no kernel",
        ),
        (
            "panic: runtime error: index out of range [2] with length 0\n\ngoroutine 1 [running]:\nmain.main()\n"
            "\t/src/main.go:535 +0x454\nexit status 2\n",
            "panic: runtime error: index out of range [2] with length 0",
        ),
        (
            "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\n\t/a.go:5 +0x4\n",
            "fatal error: all goroutines are asleep - deadlock!",
        ),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no kernel\nbye\n",
            "what(): no kernel",
        ),
        ("terminate called without an active exception\nbye\n", "terminate called without an active exception"),
        (
            'Exception in thread "main" java.lang.RuntimeException: no kernel\n\tat Engine.run(Engine.java:9)\n'
            "Caused by: java.io.IOException: 3 bytes short\n\tat Engine.read(Engine.java:7)\n\t... 1 more\n",
            "Caused by: java.io.IOException: 3 bytes short",
        ),
        ("TypeError: x is undefined\n    at run (/e.js:3:9)\n    at /e.js:9:1\n", "TypeError: x is undefined"),
        (
            "file:///e.mjs:1\nawait run()\n      ^\n\nTypeError: no kernel\n    at run (file:///e.mjs:3:9)\n"
            "    at async file:///e.mjs:1:1 {\n  [cause]: Error: 3 bytes short\n}\n\nNode.js v20.20.2\n",
            "TypeError: no kernel",
        ),
        (
            '/e.js:1\nthrow "boom"\n^\nboom\n(Use `node --trace-uncaught ...` to show where)\n\nNode.js v20.20.2\n',
            "boom",
        ),
        ("loaded\nsomewhere at run\n", "somewhere at run"),
        ("Traceback (most recent call last):\n  File \"e.py\", line 1\nKeyError: 'x'\n", "KeyError: 'x'"),
    ],
)
def test_the_reason_is_found_among_the_last_lines(printed, reason):
    error = died("ended by SIGABRT", b"loading\n" + printed.encode())
    assert str(error) == f"ended by SIGABRT: {reason}"
    assert error.log == ("loading", *(" ".join(line.split()) for line in printed.splitlines() if line))


def test_the_reason_is_told_above_a_stack_that_is_longer_than_the_log():
    stack = "".join(f"main.f{i}()\n\t/src/main.go:{i} +0x1f\n" for i in range(40))
    error = died("ended with exit code 2", f"panic: no kernel\n\ngoroutine 1 [running]:\n{stack}".encode())
    assert str(error) == "ended with exit code 2: panic: no kernel" and len(error.log) == 20


def test_of_a_long_log_the_last_lines_are_kept():
    error = died("ended by SIGABRT", "\n".join(map(str, range(50))).encode())
    assert error.log == tuple(map(str, range(30, 50)))


def test_an_interrupt_while_a_supervisor_ends_is_no_traceback_of_a_finalizer():
    class Ending:
        """A process during whose end the second Ctrl-C comes."""

        def wait(self, timeout=None):
            raise KeyboardInterrupt

    ours, theirs = socket.socketpair()
    _dismiss(Ending(), ours)  # type: ignore[arg-type]
    assert ours.fileno() == -1 and theirs.recv(1) == b""
    theirs.close()


NODE = """kernel assert failed: softmax.cu:42
 1: 0xe1be19 node::Abort() [node]
10: onStreamRead (node:internal/stream_base_commons:191:23)
----- JavaScript stack trace -----
1: processTicksAndRejections (node:internal/process/task_queues:95:5)
"""
SANITIZER = (
    "ERROR: heap-buffer-overflow on address 0x60\n    #0 0x4f in main engine.c:3\n    #1 0x7f (libc.so+0x29d8f)\n"
)


@pytest.mark.parametrize("printed", [NODE, SANITIZER, "half of 12 rows\n7 rows are lost\n"])
def test_the_reason_stands_above_frames_with_numbers(printed):
    lines = printed.splitlines()
    assert last_words(printed.encode()) == lines[1 if printed.startswith("half") else 0]
