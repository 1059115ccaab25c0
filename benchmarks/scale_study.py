"""How costs grow with the number of cases, goldens and results; first_minute.md tells what came out.

    python benchmarks/scale_study.py cases 100 1000           judging: what a case costs that computes little
    python benchmarks/scale_study.py store 1000 10000 100000  goldens on disk: make, list, read
    python benchmarks/scale_study.py report 10000 1000000     the files of a report; one answer in a hundred fails

CPU seconds of this process, and its largest memory until then, a line for each size.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.conform import Runner
from refsd.golden.report import Report, Result
from refsd.golden.store import Store
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT32
from refsd.reports.files import FORMS, JSON

LARGEST_JSON = 100_000  # results whose metrics fit in this study's memory: 2 KB each, which are encoded at once
SMALL = next(case for case in CASES.values() if case.op == "silu")


def copies(n: int) -> list[Case]:
    """n cases that differ by their names, and so by their inputs."""
    return [msgspec.structs.replace(SMALL, name=f"silu/copy/{i:07}") for i in range(n)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def judging(n: int) -> dict[str, float]:
    chosen, reference = copies(n), Reference()
    runner = Runner(judges(), lambda case: reference.run(case, case.realize()), itself=["refsd"])
    seconds, results = timed(lambda: conform.run(runner, [Reference(FLOAT32)], chosen))
    assert all(result.status == verdict.PASS for result in results)
    return {"judge": seconds}


def storing(n: int) -> dict[str, float]:
    os.fsync = lambda handle: None  # the disk's own time, which is the same for each golden
    with tempfile.TemporaryDirectory() as folder:
        store, chosen, y = Store(Path(folder)), copies(n), {"y": np.arange(64.0)}
        costs = {"put": timed(lambda: [store.put(case, {}, y, "study") for case in chosen])[0]}
        again = Store(Path(folder))
        costs["names"] = timed(again.names)[0]
        costs["get"] = timed(lambda: [again.get(case.name) for case in chosen])[0]
        costs["verify"] = timed(lambda: sum(1 for _ in again.verify({case.name: case for case in chosen})))[0]
    return costs


def reporting(n: int) -> dict[str, float]:
    reference = Reference()
    runner = Runner(judges(), lambda case: reference.run(case, case.realize()))
    (like,) = conform.run(runner, [Reference(FLOAT32)], [SMALL])
    wrong = {"status": verdict.FAIL, "margin": 7.0, "criterion": "output", "reason": "too far", "causes": ("eps",)}
    report = Report("0", {"refsd": "0"}, [], [])
    for i in range(n):
        result: Result = msgspec.structs.replace(like, case=f"{like.op}/copy/{i:07}", outputs=like.outputs)
        report.results.append(msgspec.structs.replace(result, **wrong) if i % 100 == 0 else result)
    costs = {}
    for name, form in FORMS.items():
        if name == JSON and n > LARGEST_JSON:
            continue
        seconds, content = timed(lambda form=form: form(report, {}))
        costs |= {name: seconds, f"{name} MB": len(content) / 1e6}
    return costs


STUDIES = {"cases": judging, "store": storing, "report": reporting}


def main(which: str, *sizes: str) -> None:
    STUDIES[which](1)  # compile, import
    for n in map(int, sizes):
        costs = STUDIES[which](n)
        told = ", ".join(f"{name} {cost:.3g}" for name, cost in costs.items())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{which} {n}: {told}; {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
