"""What `refsd txt2img` does: check everything, sample, decode, write; and say how far it is."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from refsd import __version__
from refsd.adapters import open_loras
from refsd.engine import memory, one_answer
from refsd.forward import write
from refsd.golden.arithmetic import named
from refsd.golden.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.picture import output_paths, parameters_text, to_bytes, write_png
from refsd.pipelines.settings import Settings, check
from refsd.pipelines.tiles import words
from refsd.progress import compile_progress
from refsd.tokenizers import find_tokenizer
from refsd.weights import open_checkpoint


class Job(NamedTuple):
    """The command line of `refsd txt2img`."""

    model: Path
    settings: Settings
    seed: int
    batch_count: int
    output: Path
    vocab: Path | None
    numerics: str
    deviations: list[str]
    taps: Path | None
    verbose: bool
    loras: tuple[str, ...] = ()


class Report:
    """Lines on stderr, and on a terminal a live line for the step in progress."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.console = Console(file=sys.stderr, highlight=False)
        self.status = self.console.status("")
        self.last = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self.verbose:
            self.say(text)

    def now(self, text: str) -> None:
        """What is being done, until the next word; only on a terminal."""
        self.status.update(text)
        if self.console.is_terminal:
            self.status.start()

    def took(self) -> float:
        """Seconds since the last call."""
        before, self.last = self.last, time.monotonic()
        return self.last - before


def run(job: Job) -> list[Path]:
    """Returns the pictures' paths. Raises BadInput, in one line, before anything is computed."""
    report = Report(job.verbose)
    check(job.settings, job.batch_count)
    arithmetic = named(job.numerics, job.deviations)
    checkpoint = open_checkpoint(job.model)
    tokenizer = find_tokenizer(job.vocab, job.model)
    paths = output_paths(job.output, job.batch_count)
    report.detail(f"vocabulary: {tokenizer.source}")
    loras = open_loras(job.loras, checkpoint)
    sd = txt2img.open_pipeline(checkpoint, tokenizer, arithmetic, memory() // 4, loras)
    settings = _aligned(job.settings, txt2img.size_multiple(sd), report)

    tapped: dict[str, np.ndarray] = {}
    with compile_progress(), one_answer(arithmetic.numerics):
        try:
            report.now("encoding the prompt")
            conditioning = txt2img.encode(sd, settings)
            tapped |= {name: array for name, array in conditioning._asdict().items() if array is not None}
            report.detail(f"text encoding: {report.took():.2f} s")
            for b, path in enumerate(paths):
                seed = job.seed + b
                image = _picture(sd, settings, conditioning, seed, f"{b + 1}/{len(paths)}", report, tapped, f"{b}.")
                extras = {"Model": job.model.name, "Numerics": job.numerics}
                extras |= {"Deviations": " ".join(job.deviations)} if job.deviations else {}
                extras |= (
                    {"Lora": " ".join(f"{file.weights.path.name}:{strength:g}" for file, strength in loras)}
                    if loras
                    else {}
                )
                extras |= words(settings.tiling, settings.seams)
                extras |= {"Version": f"refsd {__version__}"}
                write_png(path, to_bytes(image), parameters_text(settings, seed, extras))
                report.say(f"{path}: {settings.width}x{settings.height}, seed {seed}")
        finally:
            report.status.stop()
    if job.taps is not None:
        write(job.taps, tapped, {"tool": "refsd txt2img", "version": __version__, "numerics": job.numerics})
    return paths


def _picture(sd, settings, conditioning, seed, which, report, tapped, prefix) -> np.ndarray:
    """One decoded picture, its tensors under `prefix` in `tapped`."""

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        seconds = report.took()
        line = f"picture {which}: step {i + 1}/{settings.steps}, {seconds:.2f} s/it"
        report.now(line)
        if not report.console.is_terminal and (report.verbose or seconds > 1):
            report.say(line)

    def listener(name: str, array: np.ndarray) -> None:
        tapped[prefix + name] = np.array(array)

    report.now(f"picture {which}: step 0/{settings.steps}")
    latent = txt2img.sample(sd, settings, conditioning, seed, on_step, listener)
    if not np.isfinite(latent).all():
        raise BadInput(
            f"the latent of seed {seed} is not finite: the weights overflow in these numerics; try float32"
        )
    report.now(f"picture {which}: decoding")
    image = txt2img.decode(sd, latent, settings.tiling, settings.seams)
    report.detail(f"decoding: {report.took():.2f} s")
    listener("image", image)
    return image


def _aligned(settings: Settings, multiple: int, report: Report) -> Settings:
    """sd-cli's rule: sizes go up to the next multiple of 64, with a warning."""
    width, height = (-(-size // multiple) * multiple for size in (settings.width, settings.height))
    if (width, height) != (settings.width, settings.height):
        report.say(f"{settings.width}x{settings.height} goes up to {width}x{height}: multiples of {multiple}")
    return settings._replace(width=width, height=height)
