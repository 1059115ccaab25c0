"""Write docs/cases/: bugs that engines had, injected and judged; the words are the judge's, the plots its numbers.

PYTHONPATH=tests/bugs python website/case_files.py [NAME ...]    without names all
"""

import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

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
    line:     pseudo-code, the wrong lines behind "-", the right ones behind "+"
    mended:   how it was found, and where it was mended
    shown:    glob of the cases to show rather than others
    """

    id: str
    title: str
    symptom: str
    lesson: str
    line: str
    mended: str
    shown: str = ""


FILES = {
    "attention-values": CaseFile(
        "att-05",
        "Values read along the wrong axis",
        "The eye sees next to nothing: a decoded picture has its shapes and its tones, and fine structure "
        "that belongs elsewhere.",
        "A convolution leaves v as [C, H W] in memory; attention wants [H W, C]. The number of elements is "
        "the same, so that "
        "a reshape in the place of a transpose passes every check of sizes.",
        """
  v = conv1x1(x, w_v)                  # [C, H W] in memory
- v = v.reshape(H * W, C)              # the same number of elements
+ v = v.transpose(1, 0)                # [H W, C]: a row for each pixel
  y = attention(q, k, v)
""",
        "Seen as a loss of quality after a change to a shared attention helper, which was told the "
        "wrong layout of v. Mended in stable-diffusion.cpp@0752cc9d (#1297).",
    ),
    "skip-order": CaseFile(
        "gen-11",
        "Skips joined in the wrong order",
        "The UNet runs, and predicts a noise that has little to do with the right one.",
        "`concat(h, skip)` and `concat(skip, h)` have one shape. The published weights expect h first. One "
        "place is wrong by itself, "
        "each time it is passed; all that follows inherits.",
        """
  for block in output_blocks:
-     h = concat(skips.pop(), h)       # channels of the skip first
+     h = concat(h, skips.pop())       # as the weights were trained
      h = block(h, emb, context)
""",
        "No one engine: a mistake that ports of a UNet are prone to. It is found by the first tap behind a join.",
    ),
    "rope-pairs": CaseFile(
        "rope-01",
        "RoPE with the other pairing",
        "The model answers, but its attention looks at the wrong places.",
        "Two conventions rotate pairs of channels: neighbours (2i, 2i + 1), as Flux has it, and halves (i, "
        "D/2 + i), as Qwen3 has it. "
        "Weights trained for one run under the other without an error.",
        """
  for i in range(D / 2):
-     a, b = x[2 i], x[2 i + 1]        # neighbours, as in Flux
+     a, b = x[i], x[D / 2 + i]        # halves, as in Qwen3 and Gemma 3
      rotate(a, b, angle[i])
""",
        "Seen as wrong conditioning by text. Mended in stable-diffusion.cpp@d2797b86 (#1583), which "
        "gives these encoders the other type of RoPE.",
    ),
    "q4-scale-bits": CaseFile(
        "q-04",
        "A scale's bits taken for a number",
        "The picture is black: weights of Q4_1 reach 600000, and what follows overflows.",
        "A block of Q4_1 begins with two float16 numbers, the scale d and the minimum m. Sixteen bits read "
        "as an integer are a number "
        "too, 15360 for 1.0. Only one type of block is wrong, so that other files of the same model work.",
        """
  block = read(20 bytes)
- d = float(block.d)                   # 16 bits as an integer: 15360
+ d = half_to_float(block.d)           # 16 bits as a float16: 1.0
  m = half_to_float(block.m)
  w[i] = d * q[i] + m
""",
        "Seen as wrong products of Q4_1 on ARM with i8mm, where a kernel took the bits of a block's "
        "d. Mended in ggml@63dbe2fa (llama.cpp#10562).",
    ),
    "lms-history": CaseFile(
        "smp-09",
        "A multistep solver that reads its history wrongly",
        "A sampler at its full order is a little off from the fourth step on. No single picture shows it.",
        "A step of order 4 needs the last four slopes. Here the second newest is read twice. The judge goes "
        "on from the engine's own "
        "latents, so that the first wrong step is found, and not where the difference becomes visible.",
        """
  d = [slope(x, sigma)] + d            # newest first
- past = d[0], d[1], d[1], d[2]        # the second newest twice
+ past = d[0], d[1], d[2], d[3]
  x = x + sum(c[j] * past[j])          # c: integrals of Lagrange's polynomials
""",
        "Found by a reader of the source, who could not tell which of two versions is right: stable-"
        "diffusion.cpp#1848. The case files' trajectory tells.",
    ),
    "lora-alpha": CaseFile(
        "lora-11",
        "LoRA without its alpha",
        "A style is too strong or too weak, and its user turns the strength by hand until it looks right.",
        "The delta is strength * alpha / rank * up @ down. An engine that reads no alpha multiplies by the "
        "strength alone; files whose "
        "alpha is their rank hide it.",
        """
  up, down, alpha = file[key]          # rank = rows of down
- delta = strength * up @ down
+ delta = strength * alpha / rank * up @ down
  w = w + delta
""",
        "Lost where a file of an older format is converted. Mended in diffusers@09fab5610e (#4221).",
    ),
    "norm-overflow": CaseFile(
        "norm-08",
        "Squares that leave float16",
        "A model that runs in bfloat16 draws grey or black in float16, and only some prompts show it.",
        "A norm adds up the squares of a row. In float16 a value above 256 has a square above 65504, "
        "the sum is infinite, and the row divided by it is zero. The sum of many smaller squares overflows too, "
        "and is rounded coarsely long before. The accumulator, not the storage, must be float32.",
        """
  for row in x:                        # float16
-     square = half(0)                 # 65504 is its largest number
+     square = float(0)
      for value in row: square += value * value
      row /= max(sqrt(square), eps)
""",
        "Seen as NaN from an autoencoder in float16. Mended in diffusers@5fc2bd2c8f (#13316).",
        shown="l2_norm/f32/loud-*",
    ),
    "flux-shift": CaseFile(
        "smp-07",
        "The shift of a flow without its exponential",
        "Pictures of Flux are soft or unfinished, more so at large sizes; no layer of the network is wrong.",
        "Flux gives mu, the logarithm of the shift: sigma = e^mu / (e^mu + 1 / t - 1). Families with "
        "a constant "
        "shift have the number itself in the same place, so that one formula serves both until they "
        "are confused.",
        """
  mu = interpolate(tokens)             # about 0.5 to 1.15
- sigma = mu * t / (1 + (mu - 1) * t)
+ sigma = e^mu / (e^mu + 1 / t - 1)
  x = (1 - sigma) * x0 + sigma * noise
""",
        "Seen as wrong output of LTX, which had been given the other kind of flow. Mended in stable-"
        "diffusion.cpp@202c6154 (#1561).",
    ),
    "vae-shift": CaseFile(
        "vae-01",
        "A latent scaled, and not shifted",
        "Colours and contrast of Flux and SD 3 are off, most in img2img; SD 1.5 is right.",
        "The denoiser has (z - shift) * factor. Stable Diffusion 1 and XL have no shift, so that code"
        " written for "
        "them runs on: 0.1159 of Flux and 0.0609 of SD 3 are left out both ways, or one way only.",
        """
  z = encoder(picture)
- latent = z * factor
+ latent = (z - shift) * factor        # shift: 0 in SD 1 and XL
  ...
- picture = decoder(latent / factor)
+ picture = decoder(latent / factor + shift)
""",
        "The source said that the shift was yet to be done. Mended in stable-diffusion.cpp@48e0a28d (#903).",
    ),
    "gguf-order": CaseFile(
        "gen-14",
        "A GGUF's dimensions read in torch's order",
        "A converted model draws noise; a tensor that is not square is refused, a square one is not.",
        "GGUF writes the fastest dimension first, torch the slowest. A reader that does not reverse them turns "
        "each matrix, and where rows and columns are equally many nothing can notice but the values.",
        """
  ne = header.dimensions               # fastest first: columns, rows
- w = data.reshape(ne[0], ne[1])
+ w = data.reshape(ne[1], ne[0])       # torch's order: rows, columns
  y = x @ w.T
""",
        "No one engine: each new reader of GGUF can make it. A case with a square weight finds it.",
    ),
    "lora-fused": CaseFile(
        "lora-04",
        "A LoRA of q, k and v that finds no layer",
        "An adapter has no effect, or half of one; no message, no error.",
        "One trainer names to_q, to_k and to_v, the checkpoint has one fused qkv of three times the rows. An "
        "engine that compares the shapes of the two, finds them different and goes on drops these keys.",
        """
  for key, delta in lora:              # to_q, to_k, to_v
      part = w_qkv[rows of q, k or v]
-     if rows(delta) != rows(w_qkv): continue
+     if rows(delta) != rows(part): continue
      part += delta
""",
        "Seen as a LoRA that is silently skipped, after a check of shapes had come in with #1825. "
        "Mended in stable-diffusion.cpp@10378f42 (#1836).",
    ),
    "tile-seams": CaseFile(
        "vae-10",
        "Tiles blended along one axis",
        "Large pictures have horizontal seams where the decoder's tiles meet.",
        "Each tile is mixed with its left neighbour and with the one above. Here the rows are left "
        "alone: between "
        "two tiles of a row there is a ramp, between two rows a step.",
        """
  for i, j in tiles:
-     if j > 0: mix(tile[i][j - 1], tile[i][j], along x); continue
+     if j > 0: mix(tile[i][j - 1], tile[i][j], along x)
      if i > 0: mix(tile[i - 1][j], tile[i][j], along y)
""",
        "Reported with pictures as stable-diffusion.cpp#353. Mended in stable-diffusion.cpp@e71ddced (#372).",
    ),
}


_AMX = "../findings/torch-amx-bf16-convolution.md"
_THIRTEENTH = (
    f"| -0.949 for 1.416, in another run 1e37 | **[A convolution that reads memory nobody wrote]({_AMX})**<br>"
    "A corner of the picture is wrong, differently in each call, on CPUs with AMX alone. Found by "
    "`refsd conform torch`; the wrong line is in oneDNN's kernel for AMX, and not known. |"
)


def judge(case_file: CaseFile):
    """Judge an engine with the bug. -> (outcome, the engine's outputs, the truth's)"""
    injection = INJECTIONS[case_file.id]
    if case_file.shown:
        injection = injection._replace(cases=(case_file.shown, *injection.cases))
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
    return (
        f"# {case_file.title}\n\n{case_file.symptom}\n\n![The engine beside the truth, and their "
        f"difference]({name}.svg)\n\n"
        f"## What refsd says\n\nFailing cases: {outcome.failing} of {outcome.cases}. The one above is "
        f"`{outcome.case}`, where the output is "
        f"{_percent(relative)} off (relative L2):\n\n{said}\n\n"
        f"## Why\n\n{case_file.lesson}\n\n"
        f"```diff\n{case_file.line.strip(chr(10))}\n```\n\n{case_file.mended}\n"
    )


def _percent(share: float) -> str:
    return f"{share:.2g} times" if share > 10 else f"{100 * share:.3g} %"


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
    rows = "\n".join(
        f"| [![{one.title}]({name}.svg)]({name}.md) | **[{one.title}]({name}.md)**<br>{one.symptom} |"
        for name, one in FILES.items()
    )
    return (
        "# Case files\n\nBugs that engines really had, written once more, judged, and followed from "
        "what one sees to "
        "the wrong line. The words are the judge's, the plots its numbers: `website/case_files.py` "
        "makes them.\n\n"
        f"| | |\n|---|---|\n{rows}\n{_THIRTEENTH}\n\nOne more at full length: [a washed-out "
        "picture](../verdict.md#an-example-a-washed-out-picture).\n"
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "README.md").write_text(contents(), encoding="utf-8")
    for name in sys.argv[1:] or FILES:
        make(name)
        print(FOLDER / f"{name}.md")


if __name__ == "__main__":
    main()
