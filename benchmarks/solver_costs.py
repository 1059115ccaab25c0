"""Measure a solver's own time for a step, and compare it with one pass over the arrays that the step must touch.

    python benchmarks/solver_costs.py ['dpm++2m*' ...] [--runs 6] [--json COSTS.json]

Model and noise source return prepared arrays; their time is measured separately and subtracted. A step's time is
that of a run of 40 steps, divided by 40, including the tables computed at the start. Caches are as a run leaves
them. All work runs in one thread and is measured in CPU time, so that other load on the machine matters little.
Solver, pass and copy take turns; the fastest of each counts.
"""

import argparse
import fnmatch
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from state_passes import state_passes

from refsd.bench.kernel_tables import geometric_mean
from refsd.numerics.errors import BadInput
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.guidance import guide
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, TorchCpu
from refsd.samplers.parameterization import V, denoiser
from refsd.samplers.sa_solver import tau_between

SHAPE = (1, 4, 128, 128)  # SDXL's latents of 1024 x 1024 pixels
STEPS = 40

# The arrays that a step must read and write, as one "read>written" for each model call. x, y, z, w: latents.
# d, e, f, c, b: denoised. u, v: denoised without prompt. s, r, q, p: slopes. n, m, l: noise. Arrays of earlier
# steps are included. Linear combinations of listed arrays are not counted; neither are avoidable buffers.
_STATE: dict[str, tuple[str, ...]] = {
    "euler ddim ddim_strided": ("xd>y",),
    "euler_a ddpm": ("xdn>y",),
    "heun restart": ("xd>y", "yde>x"),
    "heunpp2": ("xd>y", "ye>z", "xdef>w"),
    "dpm2": ("xd>y", "xye>z"),
    "dpm2_a": ("xd>y", "xyen>z"),
    "lms lms_to_denoised ipndm ipndm_to_denoised ipndm_v ipndm_v_published plms pndm pndm_v": ("xdsrq>yp",),
    "lms_shifted deis deis_tab": ("xdsr>yp",),
    "dpm_fast": ("xd>y", "xde>y", "xdef>y"),
    "dpm_adaptive": ("xd>y", "xde>z", "xde>y", "xdef>y", "xyz>w"),
    "dpm++2s_a": ("xd>y", "xen>z"),
    "dpm++2s": ("xd>y", "xde>z"),
    "dpm++3s": ("xd>y", "xde>z", "xdf>w"),
    "dpm++sde exp_heun_2_x0_sde": ("xdn>y", "xden>z"),
    "dpm++2m dpm++2mv2 res_multistep": ("xdc>y",),
    "dpm++2m_sde dpm++2m_sde_bt dpm++2m_sde_heun res_multistep_a": ("xdcn>y",),
    "dpm++3m_sde er_sde": ("xdcbn>y",),
    "uni_pc uni_pc_bh2 uni_pc_to_thousandth uni_pc_bh2_to_thousandth": ("xdcbe>yz",),
    "lcm": ("dn>y",),
    "tcd": ("xdn>y",),
    "res_2s exp_heun_2_x0": ("xd>y", "xde>z"),
    "seeds_2": ("xdn>y", "xdenm>z"),
    "seeds_3": ("xdn>y", "xdenm>z", "xdfnml>w"),
    "sa_solver": ("xdcbenm>yz",),
    "sa_solver_pece": ("xdcben>y", "yfcbm>z"),
    "euler_ge": ("xds>yp",),
    "euler_ge_a": ("xdzcn>y",),
    "euler_cfg_pp": ("xdu>y",),
    "euler_a_cfg_pp": ("xdun>y",),
    "dpm++2s_a_cfg_pp": ("xu>y", "xduvn>z"),
    "dpm++2s_a_cfg_pp_first": ("xdu>y", "xdevn>z"),
    "dpm++2m_cfg_pp res_multistep_cfg_pp": ("xduv>y",),
    "res_multistep_a_cfg_pp": ("xduvn>y",),
    "euler_ge_cfg_pp": ("xdus>yp",),
}
STATE = {name: passes for names, passes in _STATE.items() for name in names.split()}


def _rule(name: str) -> str:
    """Find the row of _STATE for a solver: a flow solver shares the row of the solver it is named after."""
    return name.removeprefix("flow/").removesuffix("_log_snr").removesuffix("_below_one")


STATE |= {f"flow/{name}": STATE[_rule(name)] for name in FLOW_SAMPLERS}
SOLVERS = SAMPLERS | CFG_PP_SAMPLERS | {f"flow/{name}": solver for name, solver in FLOW_SAMPLERS.items()}
# sa_solver adds noise in every step, as _STATE assumes.
OPTIONS = {name: {"tau": tau_between(math.inf, 0.0)} for name in STATE if "sa_solver" in name}
# Solvers whose number of steps differs from the schedule's -> model calls in each step.
_CALLS = {"dpm_adaptive": 3, "restart": 2, "dpm++2s": 2, "dpm++3s": 3}


class Cost(NamedTuple):
    """A solver's cost, in seconds.

    step:   one step, without the calls of the model and the noise source
    once:   reading and writing the step's state arrays once
    copy:   copying as many bytes
    """

    step: float
    once: float
    copy: float

    @property
    def ratio(self) -> float:
        return self.step / self.once


class _Turns:
    """Stand in for a model or noise source: return prepared arrays in turn, and count the calls."""

    def __init__(self, arrays: Sequence[Any]):
        self.calls, self._arrays = 0, itertools.cycle(arrays)

    def __call__(self, x, sigma):
        self.calls += 1
        return next(self._arrays)


def _each(function: Callable[[], Any], calls: int = STEPS, clock: Callable[[], float] = time.process_time) -> float:
    begun = clock()
    for _ in range(calls):
        function()
    return (clock() - begun) / calls


def _sigmas(n: int, flow: bool = False) -> np.ndarray:
    if flow:
        return np.linspace(0.98, 0.02, n + 1)
    return np.exp(np.linspace(np.log(SD_LEVELS.sigmas[-1]), np.log(SD_LEVELS.sigmas[0]), n + 1))


class _Run:
    """Time a solver, the pass over its state, and the copy; keep the least time of each."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]):
        self.name, self.dtype, self.shape = name, dtype, shape
        self.best: dict[str, float] = {}
        self.steps = STEPS

    def _least(self, what: str, seconds: float) -> None:
        self.best[what] = min(seconds, self.best.get(what, seconds))

    def turn(self, calls: int) -> None:
        """Measure `calls` times in new arrays: their addresses decide how much of them the cache keeps."""
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal(self.shape).astype(self.dtype) for _ in range(10)]
        named = dict(zip(dict.fromkeys("x" + "".join(STATE[self.name]).replace(">", "")), arrays, strict=False))
        answers = [a for name, a in named.items() if name in "bcdef"]
        normals = [a for name, a in named.items() if name in "nml"]
        if self.name.removeprefix("flow/") in CFG_PP_SAMPLERS:
            unguided = [a for name, a in named.items() if name in "uv"]
            answers = [(answers[k % len(answers)], unguided[k % len(unguided)]) for k in range(2)]
        if self.name == "dpm_adaptive":
            answers = [np.zeros_like(arrays[0])]
        solver, options = SOLVERS[self.name], OPTIONS.get(self.name, {})
        once = state_passes(STATE[self.name], {name: a.reshape(-1) for name, a in named.items()})
        moved = sum(len(one) - 1 for one in STATE[self.name])
        source = np.ones(moved * arrays[0].size // 2, self.dtype)
        target = np.ones_like(source)
        sigmas = _sigmas(3 * STEPS if self.name == "dpm_fast" else STEPS, self.name.startswith("flow/"))
        for _ in range(calls):
            model, noise = _Turns(answers), _Turns(normals or arrays[:1])
            begun = time.process_time()
            solver(model, arrays[0], sigmas, noise, **options)
            self._least("run", time.process_time() - begun)
            asked = model.calls + noise.calls
            if _rule(self.name) in _CALLS:
                self.steps = model.calls // _CALLS[_rule(self.name)]
            begun = time.process_time()
            for _ in range(asked):
                model(None, 0.0)
            self._least("given", time.process_time() - begun)
            self._least("once", _each(once))
            self._least("copy", _each(lambda: np.copyto(target, source)))

    def cost(self) -> Cost:
        return Cost((self.best["run"] - self.best["given"]) / self.steps, self.best["once"], self.best["copy"])


def bench(
    only: Sequence[str] = ("*",),
    turns: int = 8,
    calls: int = 4,
    shape: tuple[int, ...] = SHAPE,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, dict[str, Cost]]:
    """Measure the solvers that match a glob of `only`. -> dtype -> name -> Cost. Raises BadInput if none match."""
    names = [name for name in STATE if any(fnmatch.fnmatch(name, glob) for glob in only)]
    if not names:
        raise BadInput(f"{' '.join(only)}: no solver; there are {', '.join(STATE)}")
    runs = [_Run(name, dtype, shape) for dtype in ("float32", "float64") for name in names]
    for turn in range(turns):
        for run in runs:
            progress(f"turn {turn + 1} of {turns}: {run.name}, {run.dtype}")
            run.turn(calls)
    costs: dict[str, dict[str, Cost]] = {}
    for run in runs:
        costs.setdefault(run.dtype, {})[run.name] = run.cost()
    return costs


def beside(shape: tuple[int, ...] = SHAPE, calls: int = 50) -> dict[str, float]:
    """Measure guidance, parameterisation and the noise sources in float32. -> name -> wall-clock seconds"""
    rng = np.random.default_rng(1)
    x, y, z = rng.standard_normal((3, *shape)).astype(np.float32)
    tree, sigmas = brownian_noise(x, _sigmas(STEPS), 1), _sigmas(STEPS).tolist()
    ends = itertools.cycle(itertools.pairwise(sigmas))
    philox, mersenne = Philox(1), TorchCpu(1)
    told = denoiser(lambda x, t: z, SD_LEVELS, V)
    rows: dict[str, Callable[[], Any]] = {
        "guidance of cond and uncond": lambda: guide(y, z, 7.5),
        "v to denoised, and x to the network's": lambda: told(x, 1.5),
        "noise: Philox": lambda: philox.randn(shape),
        "noise: torch's CPU": lambda: mersenne.randn(shape),
        "noise: Brownian tree": lambda: tree(*next(ends)),
    }
    return {name: min(_each(call, 1, time.perf_counter) for _ in range(calls)) for name, call in rows.items()}


def tables(costs: Mapping[str, Mapping[str, Cost]], beside: Mapping[str, float]) -> Iterator[Table]:
    """Show each step's microseconds and ratio to one pass over its state; then what `beside` measures."""
    table = Table(title="a step beyond the model's calls, its ratio to one pass over its state, and to a copy")
    table.add_column("latents " + " x ".join(map(str, SHAPE)))
    for dtype in costs:
        for column in (dtype, "one pass", "ratio", "to copy"):
            table.add_column(column, justify="right")
    names = dict.fromkeys(name for rows in costs.values() for name in rows)
    for name in names:
        cells = []
        for rows in costs.values():
            cost = rows[name]
            cells += microseconds(cost.step), microseconds(cost.once), f"{cost.ratio:.2f}x"
            cells.append(f"{cost.step / cost.copy:.2f}x")
        table.add_row(name, *cells)
    means = []
    for rows in costs.values():
        means += "", "", f"{geometric_mean(cost.ratio for cost in rows.values()):.2f}x"
        means.append(f"{geometric_mean(cost.step / cost.copy for cost in rows.values()):.2f}x")
    table.add_section()
    table.add_row("geometric mean", *means)
    yield table
    other = Table(title="beside the solver, in float32")
    other.add_column("")
    other.add_column("a call", justify="right")
    for name, seconds in beside.items():
        other.add_row(name, microseconds(seconds))
    yield other


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure what a solver's step costs beside its model.")
    parser.add_argument("only", nargs="*", default=["*"], metavar="GLOB", help="solvers; default: all")
    parser.add_argument("--runs", type=int, default=3, help="turns of each solver; the best counts")
    parser.add_argument("--json", type=Path, help="write every time to this file")
    given = parser.parse_args(args)
    with Console(stderr=True).status("samplers") as status:
        costs = bench(given.only, given.runs, progress=status.update)
        others = beside()
    console = Console(width=None if sys.stdout.isatty() else 160, emoji=False)
    for table in tables(costs, others):
        console.print(table)
    note = f"runs of {STEPS} steps on one thread; one pass: a compiled loop that reads and writes the state once"
    console.print(note, highlight=False, markup=False)
    if given.json is not None:
        steps = {dtype: {name: cost._asdict() for name, cost in rows.items()} for dtype, rows in costs.items()}
        given.json.write_text(json.dumps({"steps": steps, "beside": others}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
