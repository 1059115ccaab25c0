"""Where the work of a command is done: in processes of this machine, or on a cluster. All give the same results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from refsd.cluster.conform import judge_on
from refsd.cluster.connect import connected
from refsd.cluster.engines import RemoteEngine, find, look
from refsd.cluster.goldens import make_on
from refsd.cluster.processes import Processes
from refsd.cluster.spread import Spread
from refsd.engines.chosen import asked_for, look_for
from refsd.engines.registry import Argument
from refsd.golden import conform
from refsd.golden.case import Case
from refsd.golden.conform import Runner
from refsd.golden.judge import Answer
from refsd.golden.origins import is_remote
from refsd.golden.report import Missing, Result
from refsd.golden.store import Store
from refsd.golden.usual_cases import unusual
from refsd.golden.waivers import Waiver, applicable
from refsd.goldens.making import truths
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import cpu_features, usable_cores
from refsd.progress.compiling import compile_progress
from refsd.weights import recipes
from refsd.weights.recipe_files import SMALL

# Fewer answers are judged in this process: another takes two seconds to start.
_MANY = 200
# Processes at most: each holds its engines, and half a gigabyte of refsd.
_MOST = 8


class Here:
    """This machine.

    golden:    the store as the user names it
    processes: how many judge; None: one for each core, where that is safe
    timeout:   seconds that an engine's answer may take, in one process; None: as many as each engine allows
    """

    def __init__(self, golden: str, processes: int | None = None, timeout: float | None = None):
        self._address = golden if is_remote(golden) else str(Path(golden).resolve())
        self._processes, self._timeout = processes, timeout
        self._arguments: Sequence[str] = ()

    def find(self, arguments: Sequence[str] | None, taps: str, cases: Sequence[Case]) -> tuple[dict, list[Missing]]:
        """Find the engines of each argument. -> (argument -> engines, missing engines)

        Raises BadInput if an engine that the user named is missing.
        """
        self._arguments = asked_for(arguments)
        looked = {argument: look_for(argument, taps, self._timeout) for argument in self._arguments}
        for argument, (found, missing) in looked.items():
            if arguments and not found:
                raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why for one in missing)}")
        groups = {argument: found for argument, (found, _) in looked.items()}
        return groups, [one for _, missing in looked.values() for one in missing]

    def applicable(self, waivers: Sequence[Waiver]) -> list[Waiver]:
        """Return the waivers of this machine."""
        return applicable(waivers, cpu_features())

    def of_every_machine(self, waivers: Sequence[Waiver]) -> list[Waiver]:
        """Return the applicable waivers that hold wherever a case was judged."""
        return [*waivers]

    def left_out(self, engines: Sequence, cases: Sequence[Case]) -> dict[str, set[str]]:
        """Engine -> cases that it takes, and is asked only where the user names them."""
        return unusual(engines, cases)

    def truths(self, store: Store, cases: Sequence[Case]) -> AbstractContextManager[Callable[[Case], Answer]]:
        """Yield case -> its golden's answer; make those that the store lacks."""
        return truths(store, cases)

    def judge(
        self, runner: Runner, engines: Sequence, cases: Sequence[Case], done: Callable[[Result], None]
    ) -> list[Result]:
        """Judge every engine on every case, as golden.conform.run does."""
        count = self._processes or self._usual_processes(engines, cases)
        if count == 1:
            with compile_progress():
                return conform.run(runner, engines, cases, done)
        there = look(self._arguments, runner.taps, cases).found
        names = {engine.name for engine in engines}
        remote = {one.name: one for found in there.values() for one in found if one.name in names}
        with Processes(count) as processes:
            return judge_on(processes, self._address, None, runner, list(remote.values()), cases, done)

    def _usual_processes(self, engines: Sequence, cases: Sequence[Case]) -> int:
        """Return one for each core, but 1 for few answers, for models of full size, and for engines that the user
        starts or that compute on a device of their own: several copies of them may not fit.
        """
        given = map(Argument.of, self._arguments)
        ours = all(of.kind == "refsd" or not (of.path or of.device) for of in given)
        small = all(case.model is None or recipes.size(case.model) <= SMALL for case in cases)
        answers = sum(engine.refuses(case) is None for engine in engines for case in cases)
        return min(usable_cores(), _MOST) if ours and small and answers >= _MANY else 1


class OnCluster:
    """The workers of a cluster.

    client: distributed.Client
    golden: the store as the user names it: the workers open it under the same path or URL
    """

    def __init__(self, client: Any, golden: str):
        self._spread = Spread(client)
        self._address = golden if is_remote(golden) else str(Path(golden).resolve())
        self._made: set[str] = set()

    def find(self, arguments: Sequence[str] | None, taps: str, cases: Sequence[Case]) -> tuple[dict, list[Missing]]:
        return find(self._spread, arguments, taps, cases)

    def applicable(self, waivers: Sequence[Waiver]) -> list[Waiver]:
        """Return all waivers: each worker applies those of its own machine."""
        return [*waivers]

    def of_every_machine(self, waivers: Sequence[Waiver]) -> list[Waiver]:
        """Return the waivers without a CPU feature: which machine judged a case is not known here."""
        return [waiver for waiver in waivers if not waiver.when]

    def left_out(self, engines: Sequence[RemoteEngine], cases: Sequence[Case]) -> dict[str, set[str]]:
        return {engine.name: engine.left_out for engine in engines if engine.left_out}

    @contextmanager
    def truths(self, store: Store, cases: Sequence[Case]) -> Iterator[Callable[[Case], Answer]]:
        made = make_on(self._spread, store, cases)
        # A folder has what was put into it; a URL does not.
        self._made |= made if store.origin is not None else set()
        yield lambda case: store.get(case.name).outputs

    def judge(
        self,
        runner: Runner,
        engines: Sequence[RemoteEngine],
        cases: Sequence[Case],
        done: Callable[[Result], None],
    ) -> list[Result]:
        return judge_on(self._spread, self._address, self._made, runner, engines, cases, done)


@contextmanager
def workplace(
    dask: str | None, golden: str, processes: int | None = None, timeout: float | None = None
) -> Iterator[Here | OnCluster]:
    """Yield where to work.

    dask:      None, or as `connected` takes it
    golden:    the store of goldens
    processes, timeout: of this machine, without Dask; as in Here
    """
    if dask is None:
        yield Here(golden, processes, timeout)
        return
    with connected(dask) as client:
        yield OnCluster(client, golden)
