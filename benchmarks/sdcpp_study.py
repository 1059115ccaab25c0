"""What stable-diffusion.cpp does differently, measured inside an unmodified sd-cli. Results: sdcpp.md.

    python -P benchmarks/sdcpp_study.py functions  SD_CLI MODEL
    python -P benchmarks/sdcpp_study.py between    SD_CLI MODEL
    python -P benchmarks/sdcpp_study.py components SD_CLI MODEL
    python -P benchmarks/sdcpp_study.py picture    SD_CLI MODEL OUT_FOLDER

SD_CLI is built with shared ggml libraries; MODEL is a full-size SD 1.5 in one file, as
`refsd weights make sd15 --type f16` writes it. Nothing here passes or fails: that is `refsd conform`.
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

from refsd.components import forward, load
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.tap import Graph
from refsd.families import LATENT_SCALES
from refsd.kernels.activations import gelu, gelu_tanh, quick_gelu, silu
from refsd.kernels.group_norm import group_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.kernels.softmax import softmax
from refsd.kernels.timestep_embedding import timestep_embedding
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT64, GGML_CPU
from refsd.pipelines.pictures import Files, draw
from refsd.pipelines.png import to_bytes
from refsd.pipelines.settings import Settings
from refsd.samplers.guidance import guide
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import RNGS
from refsd.samplers.schedules import SCHEDULES
from refsd.tokenizers import chunks, find_tokenizer
from refsd.weights import open_checkpoint

SETTINGS = Settings(
    "a lovely cat", "", 256, 256, steps=4, cfg_scale=7.0, sampler="euler", schedule="discrete", rng="cuda"
)
GROUP_NORM_EPS, GELU_TANH = DEVIATIONS["sdcpp/group-norm-eps"], DEVIATIONS["sdcpp/gelu-tanh"]


def distance(y: np.ndarray, truth: np.ndarray) -> float:
    """|y - truth| / |truth|"""
    y, truth = np.asarray(y, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    return float(np.linalg.norm(y - truth) / np.linalg.norm(truth))


def worst_channel(y: np.ndarray, truth: np.ndarray, axis: int) -> float:
    """The same, of the channel where it is largest."""
    y, truth = (np.moveaxis(np.asarray(a, np.float64), axis, 0) for a in (y, truth))
    return max(distance(a, b) for a, b in zip(y, truth, strict=True))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """dB between two pictures of bytes."""
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def arguments(model: Path, settings: Settings, output: Path) -> list[str]:
    """sd-cli's command line for settings that are refsd's."""
    flags = {
        "-m": model,
        "-p": settings.prompt,
        "-W": settings.width,
        "-H": settings.height,
        "--steps": settings.steps,
        "--cfg-scale": settings.cfg_scale,
        "--sampling-method": settings.sampler,
        "--scheduler": settings.schedule,
        "--rng": settings.rng,
        "-s": 42,
        "-o": output,
    }
    return [str(part) for flag in flags.items() for part in flag]


# --- functions: every normalisation and activation of a small run, from the engine's own input of it ------------


def _group_norm(eps: float):
    def candidate(x, params):
        channels = np.ones(x.shape[-3]), np.zeros(x.shape[-3])
        return group_norm(x.reshape(-1, *x.shape[-3:]), *channels, params[0], eps)

    return candidate


def _layer_norm(x, params):
    return layer_norm(x.reshape(-1, x.shape[-1]), np.ones(x.shape[-1]), np.zeros(x.shape[-1]), 1e-5)


def _table(function):
    """Through ggml's table: argument and result in float16."""

    def candidate(x, params):
        y = function(x.astype(np.float16).astype(np.float64))
        return y.astype(np.float16).astype(np.float64)

    return candidate


CANDIDATES = {
    "GROUP_NORM": {"eps 1e-5": _group_norm(1e-5), "eps 1e-6": _group_norm(1e-6)},
    "NORM": {"eps 1e-5": _layer_norm},
    "GELU": {
        "erf": lambda x, params: gelu(x),
        "tanh": lambda x, params: gelu_tanh(x),
        "tanh, f16 table": _table(gelu_tanh),
    },
    "GELU_QUICK": {"exact": lambda x, params: quick_gelu(x), "f16 table": _table(quick_gelu)},
    "SILU": {"exact": lambda x, params: silu(x)},
    "SOFT_MAX": {"exact": lambda x, params: softmax(x.reshape(-1, x.shape[-1]))},
    "TIMESTEP_EMBEDDING": {
        "cosines first": lambda x, params: timestep_embedding(x.ravel(), params[0], float(params[1]))
    },
}


def functions(program: Program, model: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small = SETTINGS._replace(width=64, height=64, steps=1, cfg_scale=1.0)
        args = arguments(model, small, Path(folder) / "out.png")
        graphs = program.run_tapped(args, ops=",".join(CANDIDATES)).graphs
    found = defaultdict(list)
    for graph in graphs:
        for op in graph.ops:
            x = op.source.astype(np.float64)
            distances = {name: distance(f(x, op.params), op.result) for name, f in CANDIDATES[op.op].items()}
            found[component(graph), op.op].append(distances)
    print("| component | operation | nodes | formula | worst distance | median |\n|---|---|---|---|---|---|")
    for (where, op), nodes in found.items():
        for name in nodes[0]:
            values = [node[name] for node in nodes]
            print(f"| {where} | {op} | {len(nodes)} | {name} | {max(values):.1e} | {np.median(values):.1e} |")


# --- components: the reference on the engine's own inputs ---------------------------------------------------------


def component(graph: Graph) -> str:
    """Which component a graph is, by its inputs."""
    if "i32" in graph.signature:
        return "clip"
    return "unet" if "768x77" in graph.signature else "vae-decoder"


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    """By the component's argument names. In a signature f32:1 < f32:32x32 < f32:768x77."""
    if component(graph) == "clip":
        ids = next(x for x in graph.inputs if x.dtype == np.int32)
        return {"input_ids": ids.reshape(1, -1)}
    if component(graph) == "vae-decoder":
        return {"z": graph.inputs[0][None]}
    context = next(x for x in graph.inputs if x.shape == (77, 768))
    x = next(x for x in graph.inputs if x.ndim == 3)
    t = next(x for x in graph.inputs if x.size == 1)
    return {"x": x[None], "timesteps": t.reshape(1), "context": context[None]}


# The first graph of a component is computed under all of these, later ones under the last of each numerics.
VARIANTS = {
    "float64": (FLOAT64, ()),
    "float64, eps": (FLOAT64, (GROUP_NORM_EPS,)),
    "float64, gelu": (FLOAT64, (GELU_TANH,)),
    "float64, both": (FLOAT64, (GROUP_NORM_EPS, GELU_TANH)),
    "ggml-cpu": (GGML_CPU, ()),
    "ggml-cpu, both": (GGML_CPU, (GROUP_NORM_EPS, GELU_TANH)),
}


def components(program: Program, model: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(model, SETTINGS, Path(folder) / "out.png")
        graphs = program.run_tapped(args).graphs
    checkpoint = open_checkpoint(model)
    print(
        "| graph | numerics | engine - reference | worst channel | reference - float64, both | effect coefficient |"
    )
    print("|---|---|---|---|---|---|")
    counts: dict[str, int] = defaultdict(int)
    for graph in graphs:
        name = component(graph)
        counts[name] += 1
        answers = {}
        for label, (numerics, deviations) in VARIANTS.items():
            if name != "unet" and deviations:
                continue
            if name == "unet" and counts[name] > 1 and not label.endswith("both"):
                continue
            m, params = load(checkpoint, name, Arithmetic(numerics, deviations))
            outputs = forward(name, m, inputs_of(graph), params)
            answers[label] = np.asarray(next(iter(outputs.values())), np.float64)
        truth = answers["float64, both" if name == "unet" else "float64"]
        engine = graph.output.astype(np.float64).reshape(truth.shape)
        axis = 1 if truth.ndim == 4 else -1
        for label, y in answers.items():
            columns = [f"{name} {counts[name]}", label, f"{distance(engine, y):.2e}"]
            columns += [f"{worst_channel(engine, y, axis):.2e}", f"{distance(y, truth):.2e}"]
            columns += [f"{worst_channel(y, truth, axis):.2e}"]
            print("|", " | ".join([*columns, effect(engine, answers, label)]), "|", flush=True)


def effect(engine: np.ndarray, answers: dict[str, np.ndarray], label: str) -> str:
    """How much of a deviation's effect d = y_deviant - y_true is in the engine: <engine - y_true, d> / <d, d>.

    1: it does so; 0: it does not. The uncertainty is what white noise of the engine's size gives.
    """
    if "float64" not in answers or not label.startswith("float64, "):
        return ""
    true, d = answers["float64"], answers[label] - answers["float64"]
    noise = np.sqrt(np.mean((engine - answers["float64, both"]) ** 2)) / np.linalg.norm(d)
    if noise > 0.5:
        return "lost in the noise"
    return f"{np.sum((engine - true) * d) / np.sum(d * d):.2f} +- {noise:.2f}"


# --- between: what the program does between its graphs, in float64 from the engine's own outputs -----------------


def between(program: Program, model: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.png"
        graphs = program.run_tapped(arguments(model, SETTINGS, path)).graphs
        pixels = np.asarray(Image.open(path).convert("RGB"))
    texts, unets, (decoder,) = (
        [g for g in graphs if component(g) == name] for name in ("clip", "unet", "vae-decoder")
    )
    tokenizer = find_tokenizer(None, model)
    for graph, prompt in zip(texts, (SETTINGS.prompt, SETTINGS.negative_prompt), strict=True):
        (ids, _), *_ = chunks(tokenizer, prompt)
        print(f"token ids of {prompt!r} equal: {np.array_equal(inputs_of(graph)['input_ids'][0], ids)}")
    levels = SCHEDULES["discrete"](4, SD_LEVELS)
    assert SETTINGS.rng is not None and SETTINGS.cfg_scale is not None
    x = (
        RNGS[SETTINGS.rng](42).randn((1, 4, SETTINGS.height // 8, SETTINGS.width // 8)).astype(np.float64)
        * levels[0]
    )
    for i, (cond, uncond) in enumerate(zip(unets[::2], unets[1::2], strict=True)):
        given = inputs_of(cond)
        scaled = x / np.sqrt(levels[i] ** 2 + 1)
        print(f"step {i}: x {distance(given['x'], scaled):.1e}, timestep {given['timesteps'][0]:.9g}")
        eps = guide(cond.output.astype(np.float64), uncond.output.astype(np.float64), SETTINGS.cfg_scale)
        x = x + eps * (levels[i + 1] - levels[i])
    print(f"latent into the decoder {distance(inputs_of(decoder)['z'], LATENT_SCALES['sd1'].to_vae(x)):.1e}")
    print(f"bytes of the picture that differ: {np.mean(to_bytes(decoder.output[None]) != pixels):.2%}")


# --- picture: the same command to both ---------------------------------------------------------------------------

RUNS = {
    "ggml-cpu with deviations": ("ggml-cpu", list(DEVIATIONS)),
    "ggml-cpu": ("ggml-cpu", []),
    "float32": ("float32", []),
}


def picture(program: Program, model: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    theirs = out / "sdcpp.png"
    program.run(arguments(model, SETTINGS, theirs))
    sd = np.asarray(Image.open(theirs).convert("RGB"))
    print(
        "| refsd txt2img --numerics | PSNR to sd-cli, dB | bytes that differ | by more than 1 |\n|---|---|---|---|"
    )
    for label, (numerics, deviations) in RUNS.items():
        path = out / f"{label.replace(' ', '-')}.png"
        draw(Files(model, path, numerics=numerics, deviations=tuple(deviations)), SETTINGS)
        ours = np.asarray(Image.open(path).convert("RGB"))
        apart = np.abs(ours.astype(int) - sd)
        print(
            f"| {label} | {psnr(ours, sd):.1f} | {np.mean(apart > 0):.2%} | {np.mean(apart > 1):.2%} |", flush=True
        )
    beside = Image.new("RGB", (2 * SETTINGS.width, SETTINGS.height))
    beside.paste(Image.fromarray(sd), (0, 0))
    beside.paste(Image.open(out / "ggml-cpu-with-deviations.png"), (SETTINGS.width, 0))
    beside.quantize(256).save(out / "side-by-side.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("functions", "between", "components", "picture"))
    parser.add_argument("sd_cli", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("sdcpp-study"))
    given = parser.parse_args()
    program = Program(given.sd_cli)
    if given.part == "picture":
        picture(program, given.model, given.out)
    else:
        {"functions": functions, "between": between, "components": components}[given.part](program, given.model)


if __name__ == "__main__":
    main()
