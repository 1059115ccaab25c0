"""Distances between stable-diffusion.cpp and refsd, network by network. Results: sdcpp_families.md.

    python -P benchmarks/sdcpp_families_study.py distances SD_CLI 'flux/*'
    python -P benchmarks/sdcpp_families_study.py norms     SD_CLI 'flux/*'
    python -P benchmarks/sdcpp_families_study.py tables    SD_CLI 'flux/*'
    python -P benchmarks/sdcpp_families_study.py waves     SD_CLI 'full/chroma/*'

SD_CLI is built with shared ggml libraries; the weights are the cases' own recipes, made at first use in the user's
cache ("full/..." ones have gigabytes). Nothing here passes or fails: that is `refsd conform sdcpp:SD_CLI`.
"""

import argparse
from pathlib import Path

import numpy as np

from refsd.cases import select
from refsd.engines.reference import Reference
from refsd.engines.sdcpp.engine import REACHES, SdcppEngine
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.tap import Graph
from refsd.models.flux import AXES_DIM, angles, grid_ids
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT64, GGML_CPU, Numerics
from refsd.weights.model_files import model_files

EPS = {"GROUP_NORM": 1, "NORM": 0, "RMS_NORM": 0}  # where a node keeps it among its parameters
OTHERS = (1e-5, 1e-6)
WAVES = "TIMESTEP_EMBEDDING"


class Listener(Program):
    """Keeps the graphs that an answer takes, with some of their operations."""

    graphs: list[Graph]
    ops = tuple(EPS)

    @property
    def graph(self) -> Graph:
        return self.graphs[-1]

    def run_tapped(self, args, feeds=(), nodes="", ops="", stop=None, skip=(), weights=False):
        finished = super().run_tapped(args, feeds, nodes, ",".join(self.ops), stop, skip, weights)
        self.graphs = finished.graphs
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
        assert case.model is not None
        declared = REACHES[case.model.family, case.op].deviations
        runs: dict[str, tuple[Numerics, tuple[str, ...]]] = {"float64": (FLOAT64, ())}
        runs |= {f"float64, {name}": (FLOAT64, (name,)) for name in declared}
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


def norms(program: Listener, pattern: str) -> None:
    """Every RMSNorm of a case's last graph from the engine's own input of it, and the eps in its node."""
    engine = SdcppEngine("sdcpp", program, model_files)
    print("| case | operation | eps in the node | nodes | worst distance at 1e-5 | at 1e-6 |")
    print("|---|---|---|---|---|---|")
    for case in select(pattern):
        engine.run(case, case.realize())
        found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        for op in program.graph.ops:
            eps = f"{np.int32(op.params[EPS[op.op]]).view(np.float32):.0e}"
            heads = " of heads" if op.op == "RMS_NORM" and op.source.ndim > 2 else ""
            x, y = op.source.astype(np.float64), op.result.astype(np.float64)
            away = tuple(distance(y, _normalised(op.op, x, e)) for e in OTHERS if op.op != "GROUP_NORM")
            found.setdefault((op.op + heads, eps), []).append(away)
        for (op, eps), each in found.items():
            worst = " | ".join(f"{max(column):.1e}" for column in zip(*each, strict=True)) or " | "
            print(f"| {case.name} | {op} | {eps} | {len(each)} | {worst} |", flush=True)


def _normalised(op: str, x: np.ndarray, eps: float) -> np.ndarray:
    """Without weights, as the nodes are."""
    x = x - x.mean(-1, keepdims=True) if op == "NORM" else x
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def tables(program: Listener, pattern: str) -> None:
    """The table of Flux's rotations that the engine makes, beside angles of both precisions."""
    engine = SdcppEngine("sdcpp", program, model_files)
    deviant = Arithmetic(FLOAT64, [DEVIATIONS["sdcpp/rope-f32-angles"]])
    print("| case | angles | worst error of a cosine or sine |\n|---|---|---|")
    for case in select(pattern):
        engine.run(case, case.realize())
        shapes = {name: recipe.shape for name, recipe in case.inputs.items()}
        ids = grid_ids(*shapes["x"][2:])
        if "reference" in shapes:
            ids = np.concatenate([ids, grid_ids(*shapes["reference"][2:], index=1)])
        (table,) = (x for x in program.graph.inputs if x.ndim == 4)
        for label, arithmetic in {"float64": Arithmetic(FLOAT64), "sdcpp/rope-f32-angles": deviant}.items():
            angle = angles(Module({}, arithmetic), shapes["context"][1], ids, AXES_DIM)[0]
            turns = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1)
            print(f"| {case.name} | {label} | {np.abs(table.reshape(turns.shape) - turns).max():.1e} |", flush=True)


def waves(program: Listener, pattern: str) -> None:
    """The reference in float64 on the embeddings of times that the engine makes in float32."""
    program.ops = (WAVES,)
    engine = SdcppEngine("sdcpp", program, model_files)
    print("| case | engine - float64 | its embeddings | engine - float64 on them |\n|---|---|---|---|")
    for case in select(pattern):
        inputs = case.realize()
        found = engine.run(case, inputs)["out"].astype(np.float64)
        ops = [op for graph in program.graphs for op in graph.ops]
        truth = Reference(FLOAT64, (), model_files).run(case, inputs)["out"]
        reference = Reference(FLOAT64, (), model_files)
        exact, worst = reference.arithmetic.timestep_embedding, 0.0

        def theirs(t, dim, *rest, ops=ops, exact=exact, **more):
            nonlocal worst
            nodes = [op for op in ops if op.result.shape[-1] == dim]
            times = np.concatenate([op.source.ravel() for op in nodes])
            rows = np.concatenate([op.result.reshape(-1, dim) for op in nodes])
            y = rows[np.abs(times - t[:, None]).argmin(axis=1)].astype(np.float64)
            worst = max(worst, np.abs(y - exact(t, dim, *rest, **more)).max())
            return y

        reference.arithmetic.timestep_embedding = theirs
        near = reference.run(case, inputs)["out"]
        row = f"{distance(found, truth):.2e} | {worst:.1e} | {distance(found, near):.2e}"
        print(f"| {case.name} | {row} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("distances", "norms", "tables", "waves"))
    parser.add_argument("sd_cli", type=Path)
    parser.add_argument("pattern")
    given = parser.parse_args()
    parts = {"distances": distances, "norms": norms, "tables": tables, "waves": waves}
    parts[given.part]((Program if given.part == "distances" else Listener)(given.sd_cli), given.pattern)


if __name__ == "__main__":
    main()
