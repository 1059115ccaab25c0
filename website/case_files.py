"""Write docs/cases/: bugs that engines had, injected and judged; the words are the judge's, the plots its numbers.

PYTHONPATH=tests/bugs python website/case_files.py [NAME ...]    without names all
"""

import inspect
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import injected_files
import injected_models
import injected_operations
import injected_products
import injected_stages
import injected_steps
import numpy as np
from inject import INJECTIONS, Bench
from injection import Injected
from matplotlib import pyplot

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.weights.model_files import model_files

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "cases"


class CaseFile(NamedTuple):
    """
    id:       of the injection in tests/bugs
    title:    of the page
    symptom:  what somebody with such an engine sees
    lesson:   why it happens, and how the right code differs
    code:     the function that holds the bug
    """

    id: str
    title: str
    symptom: str
    lesson: str
    code: object


FILES = {
    "attention-values": CaseFile(
        "att-05",
        "Values read along the wrong axis",
        "The eye sees next to nothing: a decoded picture has its shapes and its tones, and fine structure "
        "that belongs elsewhere.",
        "A convolution leaves v as [C, H W] in memory; attention wants [H W, C]. The number of elements is "
        "the same, so that "
        "a reshape in the place of a transpose passes every check of sizes.",
        injected_models._values_by_channel,
    ),
    "skip-order": CaseFile(
        "gen-11",
        "Skips joined in the wrong order",
        "The UNet runs, and predicts a noise that has little to do with the right one.",
        "`concat(h, skip)` and `concat(skip, h)` have one shape. The published weights expect h first. One "
        "place is wrong by itself, "
        "each time it is passed; all that follows inherits.",
        injected_models._Reversing,
    ),
    "rope-pairs": CaseFile(
        "rope-01",
        "RoPE with the other pairing",
        "The model answers, but its attention looks at the wrong places.",
        "Two conventions rotate pairs of channels: neighbours (2i, 2i + 1), as Flux has it, and halves (i, "
        "D/2 + i), as Qwen3 has it. "
        "Weights trained for one run under the other without an error.",
        injected_operations._other_pairs,
    ),
    "q4-scale-bits": CaseFile(
        "q-04",
        "A scale's bits taken for a number",
        "The picture is black: weights of Q4_1 reach 600000, and what follows overflows.",
        "A block of Q4_1 begins with two float16 numbers, the scale d and the minimum m. Sixteen bits read "
        "as an integer are a number "
        "too, 15360 for 1.0. Only one type of block is wrong, so that other files of the same model work.",
        injected_products._q4_1_raw_scale,
    ),
    "lms-history": CaseFile(
        "smp-09",
        "A multistep solver that reads its history wrongly",
        "A sampler at its full order is a little off from the fourth step on. No single picture shows it.",
        "A step of order 4 needs the last four slopes. Here the second newest is read twice. The judge goes "
        "on from the engine's own "
        "latents, so that the first wrong step is found, and not where the difference becomes visible.",
        injected_steps._lms,
    ),
    "lora-alpha": CaseFile(
        "lora-11",
        "LoRA without its alpha",
        "A style is too strong or too weak, and its user turns the strength by hand until it looks right.",
        "The delta is strength * alpha / rank * up @ down. An engine that reads no alpha multiplies by the "
        "strength alone; files whose "
        "alpha is their rank hide it.",
        None,
    ),
    "norm-overflow": CaseFile(
        "norm-08",
        "Squares that leave float16",
        "A model that runs in bfloat16 draws grey or black in float16, and only some prompts show it.",
        "A norm adds up the squares of a row. In float16 a value above 256 has a square above 65504, the sum is "
        "infinite, and the row divided by it is zero. The row above has no such value: what one sees is the "
        "rounding of the sum, long before it overflows. The accumulator, not the storage, must be float32.",
        injected_products._squares_in_float16,
    ),
    "flux-shift": CaseFile(
        "smp-07",
        "The shift of a flow without its exponential",
        "Pictures of Flux are soft or unfinished, more so at large sizes; no layer of the network is wrong.",
        "Flux gives mu, the logarithm of the shift: sigma = e^mu / (e^mu + 1 / t - 1). Families with a constant "
        "shift have the number itself in the same place, so that one formula serves both until they are confused.",
        injected_steps._static_shift,
    ),
    "vae-shift": CaseFile(
        "vae-01",
        "A latent scaled, and not shifted",
        "Colours and contrast of Flux and SD 3 are off, most in img2img; SD 1.5 is right.",
        "The denoiser has (z - shift) * factor. Stable Diffusion 1 and XL have no shift, so that code written for "
        "them runs on: 0.1159 of Flux and 0.0609 of SD 3 are left out both ways, or one way only.",
        injected_stages._unshifted,
    ),
    "gguf-order": CaseFile(
        "gen-14",
        "A GGUF's dimensions read in torch's order",
        "A converted model draws noise; a tensor that is not square is refused, a square one is not.",
        "GGUF writes the fastest dimension first, torch the slowest. A reader that does not reverse them turns "
        "each matrix, and where rows and columns are equally many nothing can notice but the values.",
        injected_files._square_transposed,
    ),
    "lora-fused": CaseFile(
        "lora-04",
        "A LoRA of q, k and v that finds no layer",
        "An adapter has no effect, or half of one; no message, no error.",
        "One trainer names to_q, to_k and to_v, the checkpoint has one fused qkv of three times the rows. An "
        "engine that compares the shapes of the two, finds them different and goes on drops these keys.",
        None,
    ),
    "tile-seams": CaseFile(
        "vae-10",
        "Tiles blended along one axis",
        "Large pictures have horizontal seams where the decoder's tiles meet.",
        "Each tile is mixed with its left neighbour and with the one above. Here the rows are left alone: between "
        "two tiles of a row there is a ramp, between two rows a step.",
        injected_stages._left_alone,
    ),
}


def judge(case_file: CaseFile):
    """Judge an engine with the bug. -> (outcome, the engine's outputs, the truth's)"""
    injection = INJECTIONS[case_file.id]
    outcome = Bench().outcome(case_file.id, "", injection)
    case = CASES[outcome.case]
    inputs = case.realize()
    engine = Injected(injection.bug, PROFILES["float32"], model_files)
    truth = Reference(FLOAT64, model_files=model_files).run(case, inputs)
    return outcome, engine.run(case, inputs), truth


def page(name: str, case_file: CaseFile, outcome, relative: float) -> str:
    said = textwrap.fill(
        outcome.reason, 100, initial_indent="    ", subsequent_indent="    ", break_long_words=False
    )
    code = f"\nThe engine's own code, as it was judged:\n\n{_source(case_file)}\n" if case_file.code else ""
    return (
        f"# {case_file.title}\n\n{case_file.symptom}\n\n![The engine beside the truth, and their "
        f"difference]({name}.svg)\n\n"
        f"## What refsd says\n\nFailing cases: {outcome.failing} of {outcome.cases}. The one above is "
        f"`{outcome.case}`, where the output is "
        f"{_percent(relative)} off (relative L2):\n\n{said}\n\n"
        f"The cause named first: **{outcome.cause}**.\n\n## Why\n\n{case_file.lesson}\n{code}"
    )


def _percent(share: float) -> str:
    return f"{share:.2g} times" if share > 10 else f"{100 * share:.3g} %"


def _source(case_file: CaseFile) -> str:
    return textwrap.indent(textwrap.dedent(inspect.getsource(case_file.code)).rstrip(), "    ")


def plot(path: Path, engine: dict, truth: dict) -> None:
    name = "x" if np.ndim(truth.get("x")) == 5 else worst(engine, truth)
    e, t = np.asarray(engine[name], np.float64), np.asarray(truth[name], np.float64)
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    if t.ndim == 5:
        _steps(axes, e, t)
    elif t.ndim == 4 and min(t.shape[2:]) > 4:
        _maps(axes, e, t)
    else:
        _lines(axes, e, t)
    pyplot.rcParams["svg.hashsalt"] = "refsd"
    figure.savefig(path, metadata={"Date": None}, facecolor="white", dpi=150)
    pyplot.close(figure)


def worst(engine: dict, truth: dict) -> str:
    """Return the output that is furthest from the truth."""
    return max(truth, key=lambda name: _relative(engine[name], truth[name]))


def _relative(e, t) -> float:
    return float(np.linalg.norm(np.asarray(e, np.float64) - t) / (np.linalg.norm(t) or 1))


def _maps(axes, e, t) -> None:
    n, c = np.unravel_index(np.argmax(np.abs(e - t).max(axis=(2, 3))), t.shape[:2])
    low, high = t[n, c].min(), t[n, c].max()
    for axis, title, values in zip(axes, ("truth", "engine"), (t[n, c], e[n, c]), strict=False):
        axis.imshow(values, cmap="gray", vmin=low, vmax=high)
        axis.set(title=f"{title}, channel {c}", xticks=[], yticks=[])
    shown = axes[2].imshow(np.abs(e - t)[n, c], cmap="magma")
    axes[2].set(title="|engine - truth|", xticks=[], yticks=[])
    axes[2].figure.colorbar(shown, ax=axes[2])


def _lines(axes, e, t) -> None:
    """The row with the largest error, the errors of all rows, and every element against the truth."""
    width = t.shape[-1]
    e, t = e.reshape(-1, width), t.reshape(-1, width)
    row = int(np.argmax(np.abs(e - t).max(axis=1)))
    some = slice(0, 48)
    axes[0].plot(t[row, some], "k.-", ms=4, lw=1, label="truth")
    axes[0].plot(e[row, some], "C3.-", ms=4, lw=1, label="engine")
    axes[0].set(title=f"row {row}", xlabel="element")
    axes[0].legend(fontsize="small")
    shown = axes[1].imshow(np.abs(e - t)[:64, :64], cmap="magma", aspect="auto")
    axes[1].set(title="|engine - truth|", xlabel="element", ylabel="row")
    axes[1].figure.colorbar(shown, ax=axes[1])
    picked = np.linspace(0, t.size - 1, min(t.size, 1500)).astype(int)
    axes[2].plot(t.ravel()[picked], e.ravel()[picked], "C3.", ms=2, rasterized=True)
    axes[2].axline((0, 0), slope=1, color="k", lw=0.8)
    axes[2].set(title="element by element", xlabel="truth", ylabel="engine")


def _steps(axes, e, t) -> None:
    """One latent's path, the error of each step, and the last step's map."""
    axes[0].plot(t[:, 0, 0, 0, 0], "k.-", label="truth")
    axes[0].plot(e[:, 0, 0, 0, 0], "C3.-", label="engine")
    axes[0].set(title="one latent's path", xlabel="call of the model")
    axes[0].legend(fontsize="small")
    error = np.sqrt(((e - t) ** 2).mean(axis=(1, 2, 3, 4)))
    axes[1].semilogy(np.maximum(error, 1e-9), "C3.-")
    axes[1].set(title="RMS of engine - truth", xlabel="call of the model")
    axes[2].imshow(np.abs(e - t)[-1, 0, 0], cmap="magma")
    axes[2].set(title="|engine - truth|, last call", xticks=[], yticks=[])


def make(name: str) -> None:
    """Write a page and its plot."""
    case_file = FILES[name]
    outcome, engine, truth = judge(case_file)
    assert outcome.named and outcome.placed, f"{name}: {outcome}"
    output = worst(engine, truth)
    plot(FOLDER / f"{name}.svg", engine, truth)
    text = page(name, case_file, outcome, _relative(engine[output], truth[output]))
    (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


def contents() -> str:
    rows = "\n".join(f"- [{case_file.title}]({name}.md)" for name, case_file in FILES.items())
    return (
        "# Case files\n\nBugs that engines really had, written once more, judged, and followed from what one "
        "sees to the line of "
        "cause. The words are the judge's, the plots its numbers: `website/case_files.py` makes them.\n\n"
        f"{rows}\n\nOne more at full length: [a washed-out "
        f"picture](../verdict.md#an-example-a-washed-out-picture).\n"
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "README.md").write_text(contents(), encoding="utf-8")
    for name in sys.argv[1:] or FILES:
        make(name)
        print(FOLDER / f"{name}.md")


if __name__ == "__main__":
    main()
