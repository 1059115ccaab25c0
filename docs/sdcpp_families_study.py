"""Distances between stable-diffusion.cpp and refsd, network by network. Results: sdcpp_families.md.

    python -P docs/sdcpp_families_study.py distances SD_CLI 'flux/*'
    python -P docs/sdcpp_families_study.py norms     SD_CLI 'flux/*'

SD_CLI is built with shared ggml libraries; the weights are the cases' own recipes, made at first use in the user's
cache ("full/..." ones have gigabytes). Nothing here passes or fails: that is `refsd conform sdcpp:SD_CLI`.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from refsd.cli.model_files import model_files
from refsd.engine import Reference
from refsd.golden.cases import select
from refsd.golden.deviations import DEVIATIONS
from refsd.golden.engines.sdcpp import REACHES, SdcppEngine
from refsd.golden.engines.sdcpp_program import Program
from refsd.golden.numerics import FLOAT64, GGML_CPU

EPS = {"GROUP_NORM": 1, "NORM": 0, "RMS_NORM": 0}  # where a node keeps it among its parameters


class Eavesdropper(Program):
    """Counts the normalisations of the graphs that an answer takes, by their eps."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.found: Counter[tuple[str, str]] = Counter()

    def run_tapped(self, args, feeds=(), nodes="", ops="", stop=None, skip=()):
        finished = super().run_tapped(args, feeds, nodes, ",".join(EPS), stop, skip)
        kind = stop[1] if stop else ""
        for graph in finished.graphs:
            for op in graph.ops if graph.signature == kind else ():
                eps = np.int32(op.params[EPS[op.op]]).view(np.float32)
                heads = " of heads" if op.op == "RMS_NORM" and op.source.ndim > 2 else ""
                self.found[op.op + heads, f"{eps:.0e}"] += 1
        return finished


def distance(y: np.ndarray, truth: np.ndarray) -> float:
    """|y - truth| / |truth|"""
    return float(np.linalg.norm(y - truth) / np.linalg.norm(truth))


def distances(program: Program, pattern: str) -> None:
    """The engine's answer beside the reference's: float64, also with each deviation, and ggml-cpu with all."""
    engine = SdcppEngine("sdcpp", program, model_files)
    print("| case | output | reference | engine - reference | reference - truth | effect |")
    print("|---|---|---|---|---|---|")
    for case in select(pattern):
        if (why := engine.refuses(case)) is not None:
            print(f"| {case.name} | refused: {why} | | | | |", flush=True)
            continue
        inputs = case.realize()
        found = engine.run(case, inputs)
        declared = REACHES[case.model.family, case.op].deviations
        runs = {"float64": (FLOAT64, ())} | {f"float64, {name}": (FLOAT64, (name,)) for name in declared}
        runs["ggml-cpu, all deviations" if declared else "ggml-cpu"] = (GGML_CPU, declared)
        truth: dict[str, np.ndarray] = {}
        for label, (numerics, names) in runs.items():
            reference = Reference(numerics, [DEVIATIONS[name] for name in names], model_files)
            answer = {name: y.astype(np.float64) for name, y in reference.run(case, inputs).items()}
            truth = truth or answer
            for name, y in answer.items():
                error, d = found[name].astype(np.float64).reshape(y.shape) - truth[name], y - truth[name]
                columns = [case.name, name, label, f"{distance(found[name].reshape(y.shape), y):.2e}"]
                columns += [
                    f"{distance(y, truth[name]):.2e}",
                    effect(error, d) if numerics is FLOAT64 and names else "",
                ]
                print("|", " | ".join(columns), "|", flush=True)


def effect(error: np.ndarray, d: np.ndarray) -> str:
    """How much of a deviation's effect d is in the error: <error, d> / <d, d>. 1: it does so; 0: not.

    The uncertainty is what white noise of the error's size gives.
    """
    size = np.linalg.norm(d)
    noise = np.sqrt(np.mean(error**2)) / size if size else np.inf
    return "lost in the noise" if noise > 0.5 else f"{np.sum(error * d) / size**2:.2f} +- {noise:.2f}"


def norms(program: Eavesdropper, pattern: str) -> None:
    """Every normalisation of a case's graphs, with the eps in the engine's own node."""
    engine = SdcppEngine("sdcpp", program, model_files)
    print("| case | operation | eps | nodes |\n|---|---|---|---|")
    for case in select(pattern):
        program.found.clear()
        engine.run(case, case.realize())
        for (op, eps), n in sorted(program.found.items()):
            print(f"| {case.name} | {op} | {eps} | {n} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("distances", "norms"))
    parser.add_argument("sd_cli", type=Path)
    parser.add_argument("pattern")
    given = parser.parse_args()
    {"distances": distances, "norms": norms}[given.part](
        Eavesdropper(given.sd_cli) if given.part == "norms" else Program(given.sd_cli), given.pattern
    )


if __name__ == "__main__":
    main()
