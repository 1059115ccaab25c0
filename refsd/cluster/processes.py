"""Run many small jobs in processes of this machine, as `Spread` does on a cluster.

A process, `python -m refsd.cluster.processes`, reads pickled calls on its stdin and answers on its stdout.
"""

import contextlib
import copyreg
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numba

from refsd.cluster.spread import Job
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import usable_cores


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


# What a measurement lacks is an empty mapping that cannot be written to; Python does not pickle these by itself.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


class _Value(NamedTuple):
    value: Any


class _Raised(NamedTuple):
    """traceback: what an unexpected exception printed; "" for bad input"""

    text: str
    traceback: str


class _Ended(Exception):
    """A process ended during a call."""


class Processes:
    """The processes, as a context manager; each starts with its first job.

    count: how many; their kernels share the threads of this process. BLAS and engines keep the threads that they
           have in one process, because their bits may depend on the number
    """

    def __init__(self, count: int):
        share = max(1, min(usable_cores(), numba.get_num_threads()) // count)
        self._all = [_Process(share) for _ in range(count)]
        self._closed = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Let the processes end; kill them if the block ends early, where they may still compute."""
        self._closed = True
        for process in self._all:
            process.calls.shutdown(wait=False, cancel_futures=True)
            process.end(kill=kind is not None)
        for process in self._all:
            process.calls.shutdown()
            process.end(kill=True)  # of a call that had just begun

    def run(
        self,
        function: Callable[..., list],
        jobs: Iterable[Job],
        crashed: Callable[[Job], list],
        split: Callable[[Job], Sequence[Job]] = lambda job: [job],
    ) -> Iterator[list]:
        """Yield function(*arguments) of each job, in the order of the jobs. Arguments: as in Spread.run."""
        left = _Left(jobs)

        def work(process: _Process) -> None:
            while not self._closed and (one := left.next(process)) is not None:
                outcome, job = one
                try:
                    outcome.set_result(self._outcome(process, function, job, crashed, split))
                except BaseException as error:
                    outcome.set_exception(error)

        for process in self._all:
            process.calls.submit(work, process)
        while left.outcomes:
            yield left.outcomes.popleft().result()

    def on_every_worker(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Run a function once in each process, one after another, while no job runs -> number -> its value."""
        return {str(i): process.call(function, arguments) for i, process in enumerate(self._all)}

    def _outcome(
        self, process: "_Process", function: Callable[..., list], job: Job, crashed: Callable, split: Callable
    ) -> list:
        """Run a job; if it ends its process, its pieces; a piece that ends its process, too, has crashed."""
        try:
            return process.call(function, job.arguments)
        except _Ended:
            if self._closed:
                raise
            return [one for piece in split(job) for one in _piece(process, function, piece, crashed)]


def _piece(process: "_Process", function: Callable[..., list], piece: Job, crashed: Callable) -> list:
    try:
        return process.call(function, piece.arguments)
    except _Ended:
        return crashed(piece)


class _Left:
    """The jobs that no process has taken, and the outcomes of all. A process takes one group after another, so that
    it makes what their jobs share, as a model or compiled kernels; if none is left, the last jobs of another's.
    """

    def __init__(self, jobs: Iterable[Job]):
        self._groups: dict[str, deque[tuple[Future, Job]]] = {}
        self._taken: dict[_Process, str] = {}
        self._lock = threading.Lock()
        self.outcomes: deque[Future] = deque()
        for number, job in enumerate(jobs):
            self.outcomes.append(Future())
            self._groups.setdefault(job.group or str(number), deque()).append((self.outcomes[-1], job))

    def next(self, process: "_Process") -> tuple[Future, Job] | None:
        """Return a job for a process, and its outcome; None if there is none for it."""
        with self._lock:
            own = self._groups.get(self._taken.get(process, ""))
            if not own:
                begun = {*self._taken.values()}
                name = next((name for name, of in self._groups.items() if of and name not in begun), "")
                self._taken[process], own = name, self._groups.get(name)
            if own:
                return own.popleft()
            longest = max(self._groups.values(), key=len, default=())
            return longest.pop() if len(longest) > 2 else None  # for so few a model is not made again


class _Process:
    """A process that is started when it is first called, and again after it has ended.

    threads: how many its kernels compute in
    calls:   makes its calls, one at a time
    """

    def __init__(self, threads: int):
        self.calls = ThreadPoolExecutor(1)
        self._threads = threads
        self._child: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return function(*arguments). Raises BadInput as it does, _Ended if the process ends."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"NUMBA_NUM_THREADS": str(self._threads)},
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            pickle.dump((function, arguments), child.stdin)
            child.stdin.flush()
            outcome = pickle.load(child.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            self.end(kill=True)
            raise _Ended from error
        if isinstance(outcome, _Value):
            return outcome.value
        if not outcome.traceback:
            raise BadInput(outcome.text)
        raise RuntimeError(f"in another process: {outcome.text}\n{outcome.traceback}")

    def end(self, kill: bool = False) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None
        if kill:
            child.kill()
        with contextlib.suppress(OSError):
            child.stdin.close()
        child.wait()
        child.stdout.close()


def main() -> None:
    """Answer calls until stdin ends. What else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that calls this one ends it
    _answer(sys.stdin.buffer, answers)


def _answer(calls: IO[bytes], answers: IO[bytes]) -> None:
    while True:
        try:
            function, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            outcome = pickle.dumps(_Value(function(*arguments)))
        except BadInput as error:
            outcome = pickle.dumps(_Raised(str(error), ""))
        except Exception as error:
            outcome = pickle.dumps(_Raised(f"{type(error).__name__}: {error}", traceback.format_exc()))
        answers.write(outcome)
        answers.flush()


if __name__ == "__main__":
    # Under its own name, so that both sides unpickle the same classes.
    from refsd.cluster.processes import main as answer_calls

    answer_calls()
