"""Make the answers that a store of goldens lacks: before they are needed, or in a process beside this one."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

import msgspec
import numba

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.judge import Answer
from refsd.golden.publishing import publish
from refsd.golden.store import Store, make
from refsd.golden.wording import counted
from refsd.progress.compiling import compile_progress
from refsd.progress.steps import steps
from refsd.weights.model_files import model_files, trim_model_files

# Fewer missing goldens are made in this process: another takes two seconds to start.
_MANY = 64


def answerable(chosen: Sequence[Case]) -> list[Case]:
    """Return the cases that the reference can answer on this machine; print how many it leaves out, and why."""
    reference = Reference(model_files=model_files)
    refused = {case.name: reference.refuses(case) for case in chosen}
    for reason in dict.fromkeys(filter(None, refused.values())):
        left_out = sum(reason == other for other in refused.values())
        print(f"{counted(left_out, 'case')} left out: {reason}", file=sys.stderr)
    return [case for case in chosen if refused[case.name] is None]


def make_into(store: Store, chosen: Sequence[Case], public: bool = False) -> int:
    """Compute the answers that a store lacks, with a progress bar -> number of new answers.

    public: write to the store's URL what it lacks there
    """
    with compile_progress(), steps("goldens", len(chosen)) as advance:

        def done(case: Case, new: bool) -> None:
            if public:
                publish(store, case)
            advance(case.name)
            trim_model_files()

        return make(store, chosen, Reference(model_files=model_files), done)


def truth_of(store: Store) -> Callable[[Case], Answer]:
    """Return case -> its golden's answer, made if the store lacks it. Sweep the store at the end."""
    reference = Reference(model_files=model_files)

    def truth(case: Case) -> Answer:
        if (answer := store.answer(case)) is None:
            inputs = case.realize()
            store.put(case, inputs, reference.run(case, inputs), reference.version)
            answer = store.get(case.name).outputs
        return answer

    return truth


@contextmanager
def truths(store: Store, chosen: Sequence[Case]) -> Iterator[Callable[[Case], Answer]]:
    """Yield case -> its golden's answer, as `truth_of`.

    Many missing ones are made by a process beside this one, in the order of `chosen`, so that the two compile
    different kernels at once. What both need is compiled there alone, if this one first asks for an answer.
    """
    truth = truth_of(store)
    made: set[str] = set()
    with ExitStack() as beside:

        @functools.cache
        def names() -> IO[str] | None:
            missing = sum(not store.manifest_path(case.name).exists() for case in chosen)
            many = store.origin is None and missing >= _MANY
            return beside.enter_context(_maker(store, chosen)) if many else None

        def stored(case: Case) -> Answer:
            while (made_there := names()) is not None and case.name not in made:
                name = made_there.readline().rstrip("\n")
                # If it ended early, what stopped it stops this process too, which says why.
                made.update([name] if name else [case.name for case in chosen])
            return truth(case)

        yield stored
        if len(made) == len(chosen) and (made_there := names()) is not None:  # otherwise the run was interrupted
            made_there.read()  # until it has tidied up
    store.sweep()


@contextmanager
def _maker(store: Store, chosen: Sequence[Case]) -> Iterator[IO[str]]:
    """Start the process that makes goldens, and end it. Yields the names of those that are stored, a line each."""
    command = [sys.executable, "-P", "-m", "refsd.goldens.maker", str(store.root.absolute())]
    cases = msgspec.json.encode(chosen).decode()
    pipe = subprocess.PIPE
    env = os.environ | {"NUMBA_NUM_THREADS": str(numba.get_num_threads())}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, text=True) as maker:
        assert maker.stdin is not None and maker.stdout is not None
        try:
            maker.stdin.write(cases)
            maker.stdin.close()
            yield maker.stdout
        finally:
            maker.kill()
