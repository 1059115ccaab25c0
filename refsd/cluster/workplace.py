"""Where the work of a command is done: in this process, or on a cluster. Both give the same results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from refsd.cluster.conform import judge_on
from refsd.cluster.connect import connected
from refsd.cluster.engines import RemoteEngine, find
from refsd.cluster.goldens import make_on
from refsd.cluster.spread import Spread
from refsd.engines.chosen import asked_for, look_for
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
from refsd.numerics.processor import cpu_features


class Here:
    """This process."""

    def find(self, arguments: Sequence[str] | None, taps: str, cases: Sequence[Case]) -> tuple[dict, list[Missing]]:
        """Find the engines of each argument. -> (argument -> engines, missing engines)

        Raises BadInput if an engine that the user named is missing.
        """
        looked = {argument: look_for(argument, taps) for argument in asked_for(arguments)}
        for argument, (found, missing) in looked.items():
            if arguments and not found:
                raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why for one in missing)}")
        groups = {argument: found for argument, (found, _) in looked.items()}
        return groups, [one for _, missing in looked.values() for one in missing]

    def applicable(self, waivers: Sequence[Waiver]) -> list[Waiver]:
        """Return the waivers of this machine."""
        return applicable(waivers, cpu_features())

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
        return conform.run(runner, engines, cases, done)


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
def workplace(dask: str | None, golden: str) -> Iterator[Here | OnCluster]:
    """Yield where to work. dask: None, or as `connected` takes it; golden: the store of goldens"""
    if dask is None:
        yield Here()
        return
    with connected(dask) as client:
        yield OnCluster(client, golden)
