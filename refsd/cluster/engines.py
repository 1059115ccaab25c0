"""Which engines the workers of a cluster have, and the Dask resources that lead to the workers that have them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from refsd import __version__
from refsd.cluster.spread import Spread, workers_of
from refsd.engines.chosen import asked_for, look_for
from refsd.engines.devices import device_of
from refsd.engines.registry import Argument
from refsd.golden.case import Case
from refsd.golden.report import Missing
from refsd.golden.usual_cases import unusual
from refsd.numerics.errors import BadInput


class RemoteEngine(msgspec.Struct):
    """What is known here of an engine that answers on the workers.

    argument: for which the workers find it
    refused:  case -> why the engine does not take it
    left_out: cases that it takes, and is asked only where the user names them
    needs:    the Dask resources of the workers that have it
    """

    name: str
    argument: str
    version: str
    device: str
    refused: dict[str, str]
    left_out: set[str]
    needs: dict[str, float] = {}

    def refuses(self, case: Case) -> str | None:
        return self.refused.get(case.name)


class There(NamedTuple):
    """What one worker has. found: argument -> engines; missing: argument -> those that it lacks"""

    refsd: str
    found: dict[str, list[RemoteEngine]]
    missing: dict[str, list[Missing]]


def look(arguments: Sequence[str], taps: str, cases: Sequence[Case]) -> There:
    """Look for the engines here: it runs on each worker."""
    there = There(__version__, {}, {})
    for argument in arguments:
        engines, there.missing[argument] = look_for(argument, taps)
        left_out = unusual(engines, cases)
        there.found[argument] = [
            RemoteEngine(
                engine.name,
                argument,
                engine.version,
                device_of(engine),
                {case.name: why for case in cases if (why := engine.refuses(case)) is not None},
                left_out.get(engine.name, set()),
            )
            for engine in engines
        ]
    return there


def find(
    spread: Spread, arguments: Sequence[str] | None, taps: str, cases: Sequence[Case]
) -> tuple[dict[str, list[RemoteEngine]], list[Missing]]:
    """Find the engines of each argument on the workers. -> (argument -> engines, missing engines)

    Raises BadInput if workers lack an engine that the user named, have other versions of it, or another refsd.
    """
    wanted = asked_for(arguments)
    declared = {address: {*worker["resources"]} for address, worker in workers_of(spread.client).items()}
    workers = spread.on_every_worker(look, wanted, taps, cases)
    for address, there in workers.items():
        if there.refsd != __version__:
            raise BadInput(f"worker {address} has refsd {there.refsd}, this is {__version__}: install the same")
    groups, missing = {}, []
    for argument in wanted:
        groups[argument], lacking = _of_argument(argument, workers, declared)
        missing += lacking
        if arguments and not groups[argument]:
            raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why for one in lacking)}")
    return groups, missing


def _of_argument(
    argument: str, workers: Mapping[str, There], declared: Mapping[str, set[str]]
) -> tuple[list[RemoteEngine], list[Missing]]:
    having: dict[str, dict[str, RemoteEngine]] = {}  # engine -> worker -> as it is there
    why_not: dict[str, str] = {}
    for address, there in workers.items():
        for engine in there.found[argument]:
            having.setdefault(engine.name, {})[address] = engine
        for one in there.missing[argument]:
            why_not.setdefault(one.name, one.why)
    missing = [Missing(name, why) for name, why in why_not.items() if name not in having]
    found = []
    for name, of in having.items():
        resource = next((r for r in resources(name, argument) if any(r in have for have in declared.values())), "")
        lacking = [a for a in workers if a not in of and (not resource or resource in declared.get(a, ()))]
        if lacking:
            how = f"resource {resource!r} is declared by" if resource else "it is lacking on"
            hint = f"start the workers that have it with --resources {resources(name, argument)[0]}=1"
            missing.append(Missing(name, f"{how} {lacking[0]}, which lacks {name}: {hint}"))
            continue
        versions = {engine.version for engine in of.values()}
        if len(versions) > 1:
            raise BadInput(f"{name}: the workers have versions {', '.join(sorted(versions))}: give all the same")
        engine = of[min(of)]
        found.append(msgspec.structs.replace(engine, needs={resource: 1.0} if resource else {}))
    return found, missing


def resources(name: str, argument: str) -> list[str]:
    """The Dask resources that may mean an engine, the narrowest first: its name, its device, its kind.

    "torch-bf16@cuda:1" -> ["torch-bf16@cuda:1", "cuda", "torch-bf16", "torch"]
    """
    plain, _, device = name.partition("@")
    device = device or Argument.of(argument).device
    family = "".join(letter for letter in device.partition(":")[0] if not letter.isdigit()).lower()
    return list(dict.fromkeys(filter(None, (name, family, plain, Argument.of(argument).kind))))
