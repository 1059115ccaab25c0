"""What a solver costs beside its model: a step's time against one pass over the arrays that it must touch.

The model and the noise hand out arrays that exist already, in turn; their own time is measured and taken away.
A step is a fortieth of a run of 40, tables made at its start included. Caches are as a run leaves them. Everything
is one thread's work. Solver, pass and copy take turns; the quickest of each counts.
"""

import fnmatch
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsd.bench.state_passes import state_passes
from refsd.golden.errors import BadInput
from refsd.samplers import CFG_PP_SAMPLERS, SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.guidance import guide
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, TorchCpu
from refsd.samplers.parameterization import V, denoiser

SHAPE = (1, 4, 128, 128)  # SDXL's latents of 1024 x 1024 pixels
STEPS = 40

# The arrays that a step must read and write, call by call of the model, "read>written": x, y, z are latents; d, e,
# f answers of the model, the newer the later; c, b those of earlier steps; s, r, q, p slopes; u the answer without
# prompt; n noise. What follows from others by weights alone is not counted; a buffer that nobody needs is free.
STATE: dict[str, tuple[str, ...]] = {
    "euler": ("xd>y",),
    "euler_a": ("xdn>y",),
    "heun": ("xd>y", "yde>x"),
    "dpm2": ("xd>y", "xye>z"),
    "dpm2_a": ("xd>y", "xyen>z"),
    "lms": ("xdsrq>yp",),
    "dpm_fast": ("xd>y", "xde>y", "xdef>y"),
    "dpm_adaptive": ("xd>y", "xde>z", "xde>y", "xdef>y", "xyz>w"),
    "dpm++2s_a": ("xd>y", "xen>z"),
    "dpm++sde": ("xdn>y", "xden>z"),
    "dpm++2m": ("xdc>y",),
    "dpm++2mv2": ("xdc>y",),
    "dpm++2m_sde": ("xdcn>y",),
    "dpm++2m_sde_heun": ("xdcn>y",),
    "dpm++3m_sde": ("xdcbn>y",),
    "ipndm": ("xdsrq>yp",),
    "ipndm_v": ("xdsrq>yp",),
    "plms": ("xdsrq>yp",),
    "deis": ("xdsr>yp",),
    "uni_pc": ("xdcbe>yz",),
    "uni_pc_bh2": ("xdcbe>yz",),
    "lcm": ("dn>y",),
    "tcd": ("xdn>y",),
    "res_multistep": ("xdc>y",),
    "res_2s": ("xd>y", "xde>z"),
    "er_sde": ("xdcbn>y",),
    "euler_ge": ("xds>yp",),
    "euler_cfg_pp": ("xdu>y",),
    "euler_a_cfg_pp": ("xdun>y",),
}


class Cost(NamedTuple):
    """
    step:   seconds of a step beyond the model's calls and the noise's
    once:   of reading and writing its state arrays once
    copy:   of copying as many bytes
    """

    step: float
    once: float
    copy: float

    @property
    def ratio(self) -> float:
        return self.step / self.once


class _Turns:
    """Arrays handed out in turn, and how often."""

    def __init__(self, arrays: Sequence[Any]):
        self.calls, self._arrays = 0, itertools.cycle(arrays)

    def __call__(self, x, sigma):
        self.calls += 1
        return next(self._arrays)


def _each(function: Callable[[], Any], calls: int = STEPS) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begun) / calls


def _sigmas(n: int) -> np.ndarray:
    return np.exp(np.linspace(np.log(SD_LEVELS.sigmas[-1]), np.log(SD_LEVELS.sigmas[0]), n + 1))


class _Run:
    """A solver's runs, the pass and the copy that they are held against, and the least time of each so far."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]):
        self.name, self.dtype, self.shape = name, dtype, shape
        self.best: dict[str, float] = {}
        self.steps = STEPS

    def _least(self, what: str, seconds: float) -> None:
        self.best[what] = min(seconds, self.best.get(what, seconds))

    def turn(self, calls: int) -> None:
        """In memory of its own: where pages lie decides how much of them the cache keeps."""
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal(self.shape).astype(self.dtype) for _ in range(9)]
        pairs = self.name in CFG_PP_SAMPLERS
        named = dict(zip(dict.fromkeys("x" + "".join(STATE[self.name])), arrays, strict=False))
        answers = [a for name, a in named.items() if name in "bcdef"]
        if pairs:
            answers = [(named["d"], named["u"])]
        if self.name == "dpm_adaptive":
            answers = [np.zeros_like(arrays[0])]
        solver = (CFG_PP_SAMPLERS if pairs else SAMPLERS)[self.name]
        once = state_passes(STATE[self.name], {name: a.reshape(-1) for name, a in named.items()})
        moved = sum(len(one) - 1 for one in STATE[self.name])
        source = np.ones(moved * arrays[0].size // 2, self.dtype)
        target = np.ones_like(source)
        sigmas = _sigmas(3 * STEPS if self.name == "dpm_fast" else STEPS)
        for _ in range(calls):
            model, noise = _Turns(answers), _Turns([named.get("n", arrays[0])])
            begun = time.perf_counter()
            solver(model, arrays[0], sigmas, noise)
            self._least("run", time.perf_counter() - begun)
            asked = model.calls + noise.calls
            begun = time.perf_counter()
            for _ in range(asked):
                model(None, 0.0)
            self._least("given", time.perf_counter() - begun)
            if self.name == "dpm_adaptive":  # takes as many steps as it likes, of three calls each
                self.steps = asked // 3
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
    """Measure the solvers that a glob of `only` names. -> dtype -> name -> Cost. Raises BadInput where none is."""
    names = [name for name in STATE if any(fnmatch.fnmatch(name, glob) for glob in only)]
    if not names:
        raise BadInput(f"--only {' '.join(only)}: no solver; there are {', '.join(STATE)}")
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
    """Seconds of what is no solver's: guidance and parameterisation, the sources of noise. In float32."""
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
    return {name: min(_each(call, 1) for _ in range(calls)) for name, call in rows.items()}
