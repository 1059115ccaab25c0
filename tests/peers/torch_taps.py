"""False alarms by taps: torch's own models of every family, on several draws of each case's inputs.

    python -P tests/peers/torch_taps.py --seeds 10 --cases 'flux*'

A line for each case, and one for each tap that is wrong. Exit code 1 if there is one.
"""

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from refsd.cases.models import CASES
from refsd.engines.torch.engine import find
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles, TappedEngine
from refsd.golden.verdict import NO_WITNESS, judge_output
from refsd.judges.model import ModelJudge
from refsd.weights import recipes

# Components with filters and GroupNorms, which the order of memory concerns.
_PICTURES = ("model/unet", "model/controlnet", "model/vae-encoder", "model/vae-decoder")


class Traced(NamedTuple):
    """An answer of torch. taps: how many were judged; alarms: why some are wrong; worst: the largest margin"""

    case: str
    engine: str
    taps: int
    alarms: list[str]
    worst: float


def files_in(folder: Path) -> ModelFiles:
    def give(model, layout):
        name = f"{model.family}-{model.type}-{model.quiet}"
        path = folder / (name if layout == "diffusers" else f"{name}.safetensors")
        return path if path.exists() else recipes.make(model, path, layout)

    return give


def drawn(case: Case, seed: int) -> Case:
    """The case with other inputs, which come from its name; its own for seed 0."""
    return replace(case, name=f"{case.name}@{seed}") if seed else case


def traced(kind: ModelJudge, engine: TappedEngine, case: Case) -> Traced:
    inputs = case.realize()
    found, taps = engine.run_tapped(case, inputs)
    trace = kind.trace(case, inputs, {**taps, **found}, engine.numerics(case))
    judged = [(m.output, judge_output(m)) for m in trace.taps]
    seen = [(name, j) for name, j in judged if j.criterion != NO_WITNESS]
    alarms = [j.reason for _, j in seen if not j.passed]
    return Traced(case.name, engine.name, len(seen), alarms, max((j.margin for _, j in seen), default=0.0))


def all_traced(give: ModelFiles, cases: list[Case], seeds: range) -> Iterator[Traced]:
    engines = {
        place: [found.engine for found in find(place, model_files=give) if isinstance(found.engine, TappedEngine)]
        for place in (None, "channels_last")
    }
    kind = ModelJudge(give)
    for case in cases:
        for engine in engines[None] + (engines["channels_last"] if case.op in _PICTURES else []):
            for seed in seeds:
                if engine.refuses(drawn(case, seed)) is None:
                    yield traced(kind, engine, drawn(case, seed))


def main(arguments: list[str], show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cases", default="*", help="a glob")
    given = parser.parse_args(arguments)
    cases = [case for case in CASES if fnmatch.fnmatchcase(case.name, given.cases)]
    answers, taps, alarms, worst = 0, 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for each in all_traced(files_in(Path(folder)), cases, range(given.seeds)):
            answers, taps, alarms = answers + 1, taps + each.taps, alarms + len(each.alarms)
            worst = max(worst, each.worst)
            show(f"{each.case} {each.engine}: {each.taps} taps, worst margin {each.worst:.2f}")
            for reason in each.alarms:
                show(f"  ALARM {reason}")
    show(f"{answers} answers, {taps} taps, {alarms} wrong, worst margin {worst:.2f}")
    return 1 if alarms or not answers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
