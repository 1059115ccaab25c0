"""Every sampler on every schedule of stable-diffusion.cpp, in an unmodified sd-server. Results: sdcpp_samplers.md.

    python benchmarks/sdcpp_samplers_study.py record  SD_SERVER MODEL RUNS.npz [--only GLOB]
    python benchmarks/sdcpp_samplers_study.py matrix  RUNS.npz
    python benchmarks/sdcpp_samplers_study.py fixture RUNS.npz OUT.npz
    python benchmarks/sdcpp_samplers_study.py free    RUNS.npz MODEL

SD_SERVER is built with shared ggml libraries; MODEL is a full-size SD 1.5 in one file, as
`refsd weights make sd15 --type f16` writes it. GLOB chooses runs by name: '*|discrete|4|64|64|1.0|None|42' are the
15 that `free` needs. What passes or fails: tests/peers/test_sdcpp_samplers.py.
"""

import argparse
import fnmatch
from pathlib import Path

import numpy as np
import sdcpp_float32
from sdcpp_server import Server
from sdcpp_trajectories import SamplerRun, Seen, compare, float32_levels, seen

from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT32
from refsd.pipelines import txt2img
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers import noise
from refsd.samplers.levels import SD_LEVELS
from refsd.weights import open_checkpoint

SAMPLERS = (
    *("euler", "euler_a", "heun", "dpm2", "dpm++2s_a", "dpm++2m", "dpm++2mv2", "ipndm", "ipndm_v", "lcm"),
    *("ddim_trailing", "tcd", "res_multistep", "res_2s", "er_sde"),
)
SCHEDULES = (
    *("discrete", "karras", "exponential", "ays", "gits", "sgm_uniform", "simple", "smoothstep", "kl_optimal"),
    *("lcm", "bong_tangent"),
)
ETA = ("euler_a", "dpm++2s_a", "ddim_trailing", "tcd", "res_multistep", "res_2s", "er_sde")
PROMPT = "a lovely cat"
RUNS = [
    *(SamplerRun(sampler, schedule, steps) for steps in (4, 5) for schedule in SCHEDULES for sampler in SAMPLERS),
    *(SamplerRun(sampler, "discrete", 4, 128, 192) for sampler in SAMPLERS),
    *(SamplerRun(sampler, "karras", 5, cfg_scale=7.0) for sampler in SAMPLERS),
    *(SamplerRun(sampler, "karras", 5, eta=0.5) for sampler in ETA),
    *(SamplerRun(sampler, "karras", 4, 256, 256) for sampler in ("euler_a", "dpm++2m", "res_2s", "er_sde")),
]


def record(server: Path, model: Path, path: Path, only: str) -> None:
    """The decoder's graphs are not computed: only what it is given matters."""
    chosen = [asked for asked in RUNS if fnmatch.fnmatch(asked.key, only)]
    sizes = {(asked.width // 8, asked.height // 8) for asked in chosen}
    runs: dict[str, np.ndarray] = {}
    with Server(server, model, [f"f32:{width}x{height}x4x1" for width, height in sizes]) as program:
        for asked in chosen:
            size = asked.width, asked.height
            graphs = program.picture(PROMPT, *size, asked.cfg_scale, asked.seed, **asked.sampling())
            runs |= {f"{asked.key}/{name}": a for name, a in seen(graphs, asked.cfg_scale)._asdict().items()}
            print(asked.key, flush=True)
    np.savez(path, **runs)  # pyright: ignore[reportArgumentType]


def read(path: Path) -> dict[SamplerRun, Seen]:
    with np.load(path) as file:
        names = dict.fromkeys(name.rpartition("/")[0] for name in file.files if "/" in name)
        return {SamplerRun.of(name): Seen(*(file[f"{name}/{field}"] for field in Seen._fields)) for name in names}


def matrix(path: Path) -> None:
    runs = read(path)
    levels = float32_levels()
    for steps in (4, 5):
        print(f"\n{steps} steps\n\n| | {' | '.join(SCHEDULES)} |\n|{'---|' * (1 + len(SCHEDULES))}")
        for sampler in SAMPLERS:
            cells = []
            for schedule in SCHEDULES:
                asked = SamplerRun(sampler, schedule, steps)
                cells.append(f"{compare(asked, runs[asked], levels).steps.max():.0e}" if asked in runs else "")
            print(f"| {sampler} | {' | '.join(cells)} |")
    print("\n| others | worst step | worst timestep |\n|---|---|---|")
    for asked in RUNS[2 * len(SAMPLERS) * len(SCHEDULES) :]:
        if asked in runs:
            apart = compare(asked, runs[asked], levels)
            print(f"| {asked.key} | {apart.steps.max():.0e} | {apart.t:.0e} |")
    print("\n| run | of float32's bound | the same by float64 levels | step by step |\n|---|---|---|---|")
    both = {asked: (compare(asked, run, levels), compare(asked, run, SD_LEVELS)) for asked, run in runs.items()}
    for asked, (near, far) in sorted(both.items(), key=lambda item: -item[1][0].margin)[:24]:
        steps = " ".join(f"{d:.0e}" for d in near.steps)
        print(f"| {asked.key} | {near.margin:.2f} | {far.margin:.2f} | {steps} |")
    print("\n| run | of the bound | with its deviation | step by step |\n|---|---|---|---|")
    explained = {
        asked: compare(asked, run, levels, True)
        for asked, run in runs.items()
        if asked.sampler in sdcpp_float32.DEVIATIONS
    }
    for asked, apart in explained.items():
        if both[asked][0].margin > 1:
            steps = " ".join(f"{d:.0e}" for d in apart.steps)
            print(f"| {asked.key} | {both[asked][0].margin:.2f} | {apart.margin:.2f} | {steps} |")
    print(f"\nworst with deviations: {max((apart.margin for apart in explained.values()), default=0):.2f}")
    print(f"\n{len(runs)} runs, {sum(near.margin <= 1 for near, _ in both.values())} inside float32's bound,")
    print(f"worst step {max(near.steps.max() for near, _ in both.values()):.1e} with float32 levels,")
    print(f"{max(far.steps.max() for _, far in both.values()):.1e} with float64's")


def fixture(path: Path, out: Path) -> None:
    """One row of latents of every sampler and every schedule: enough, since a step is a sum of arrays."""
    runs = read(path)
    chosen = [SamplerRun(sampler, "karras", 5) for sampler in SAMPLERS]
    chosen += [SamplerRun("dpm++2m", schedule, 4) for schedule in SCHEDULES]
    chosen += [SamplerRun(sampler, "karras", 5, eta=0.5) for sampler in ETA]
    chosen += [SamplerRun(sampler, "discrete", 5) for sampler in sdcpp_float32.DEVIATIONS]
    chosen += [SamplerRun("dpm++2s_a", schedule, 4) for schedule in ("ays", "kl_optimal")]
    kept = {}
    for asked in chosen:
        run = runs[asked]
        cut = run._replace(x=run.x[:, :1, :1], eps=run.eps[:, :1, :1], latent=run.latent[:1, :1])
        kept |= {f"{asked.key}/{name}": a.astype(np.float32) for name, a in cut._asdict().items()}
    np.savez_compressed(out, tool=np.array("stable-diffusion-cpp-python 0.4.7, sd-server"), **kept)


class _Pushed(noise.Philox):
    """A thousandth added to the first noise: about what float16 does in the UNet."""

    def randn(self, shape):
        y = super().randn(shape)
        if self.call == 1:
            other = np.random.default_rng(1).standard_normal(shape)
            y = (y + 1e-3 * other * np.linalg.norm(y) / np.linalg.norm(other)).astype(np.float32)
        return y


def free(path: Path, model: Path) -> None:
    """Both programs from the same noise to the end, and how much a displaced start moves refsd's."""
    runs = read(path)
    deviations = [DEVIATIONS["sdcpp/group-norm-eps"], DEVIATIONS["sdcpp/gelu-tanh"]]
    sd = open_pipeline(open_checkpoint(model), Tokenizers(), Arithmetic(FLOAT32, deviations), budget=6 << 30)
    base = Settings(PROMPT, width=64, height=64, steps=4, cfg_scale=1.0, schedule="discrete")
    conditioning = txt2img.encode(sd, resolve(sd, base))
    noise.RNGS["pushed"] = _Pushed
    print("| sampler | latents apart | amplification of a displaced start |\n|---|---|---|")
    for sampler in SAMPLERS:
        ends = [
            txt2img.sample(sd, resolve(sd, base._replace(sampler=sampler, rng=rng)), conditioning, 42)
            for rng in ("cuda", "pushed")
        ]
        engine = runs[SamplerRun(sampler, "discrete", 4)].latent
        apart, moved = (np.linalg.norm(other - ends[0]) / np.linalg.norm(ends[0]) for other in (engine, ends[1]))
        print(f"| {sampler} | {apart:.1e} | {moved / 1e-3:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("record", "matrix", "fixture", "free"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--only", default="*", help="of record: the runs whose names match")
    given = parser.parse_args()
    more = (given.only,) if given.part == "record" else ()
    {"record": record, "matrix": matrix, "fixture": fixture, "free": free}[given.part](*given.paths, *more)


if __name__ == "__main__":
    main()
