"""What `refsd txt2img` does: check everything, sample, decode, write."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd import __version__
from refsd.golden.output_file import Outputs
from refsd.loras import open_loras
from refsd.numerics.arithmetic import named
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory, one_answer
from refsd.pipelines import txt2img
from refsd.pipelines.given import Given, read_picture
from refsd.pipelines.noise_levels import sigmas
from refsd.pipelines.picture import output_paths, parameters_text, to_bytes, write_png
from refsd.pipelines.pipeline import Conditioning, Pipeline, drawn_size, filled, open_pipeline, size_multiple
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.report import Report
from refsd.pipelines.settings import Settings, check
from refsd.pipelines.start import check_given, start
from refsd.pipelines.tiles import words
from refsd.progress import compile_progress
from refsd.weights import open_checkpoint
from refsd.weights.tensor_files import check_name, write_arrays


class Job(NamedTuple):
    """The command line of `refsd txt2img`.

    parts: a key of PART_FLAGS -> file; pictures: a key of PICTURES -> file
    """

    model: Path | None
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
    parts: Mapping[str, Path] = {}
    pictures: Mapping[str, Path] = {}
    tokenizer: Path | None = None
    json: bool = False
    lora_rule: str = "trainer"


# Flag -> field of Given.
PICTURES = {"--init-img": "init", "--mask": "mask", "--control-image": "control", "--ref-image": "reference"}


def run(job: Job) -> list[Path]:
    """Returns the pictures' paths. Raises BadInput, in one line, before anything is computed."""
    report = Report(job.verbose)
    check(job.settings, job.batch_count)
    arithmetic = named(job.numerics, job.deviations)
    given = Given(**{PICTURES[flag]: read_picture(flag, path) for flag, path in job.pictures.items()})
    checkpoint = open_checkpoint(job.model, job.parts)
    loras = open_loras(job.loras, checkpoint, job.lora_rule)
    tokenizers = Tokenizers(job.vocab, job.tokenizer, job.model)
    pipe = open_pipeline(checkpoint, tokenizers, arithmetic, memory() // 4, loras)
    found = tokenizers.find(pipe.encoders.values())
    settings = filled(pipe, _aligned(pipe, _sized(job.settings, given), report))
    check_given(pipe, settings, given)
    steps = len(sigmas(pipe, settings, given.init is not None)) - 1
    _warn(pipe, settings, report)
    paths = _outputs(job)
    report.detail(f"vocabulary: {', '.join(found)}")

    tapped: dict[str, np.ndarray] = {}
    with compile_progress(), one_answer(arithmetic.numerics):
        try:
            report.now("encoding the prompt")
            conditioning = txt2img.encode(pipe, settings)
            tapped |= _named(conditioning)
            report.detail(f"text encoding: {report.took():.2f} s")
            for b, path in enumerate(paths):
                begin = start(pipe, settings, job.seed + b, given, job.seed)
                report.picture, report.steps = f"{b + 1}/{len(paths)}", steps
                image = _picture(pipe, settings, conditioning, begin, job.seed + b, report, tapped, f"{b}.")
                parameters = parameters_text(settings, job.seed + b, _extras(job, loras, settings))
                write_png(path, to_bytes(image), parameters)
                report.say(f"{path}: {settings.width}x{settings.height}, seed {job.seed + b}")
        finally:
            report.status.stop()
    if job.taps is not None:
        write_arrays(job.taps, tapped, {"tool": "refsd txt2img", "version": __version__, "numerics": job.numerics})
    if job.json:
        print(json.dumps(_told(job, pipe, settings, paths)))
    return paths


def _outputs(job: Job) -> list[Path]:
    """Each picture's path. Raises BadInput for what could not be written in the end."""
    outputs, paths = Outputs(), output_paths(job.output, job.batch_count)
    for path in paths:
        outputs.add("--output", path)
    if job.taps is not None:
        check_name(job.taps)
        outputs.add("--taps", job.taps)
    return paths


def _picture(pipe, settings, conditioning, begin, seed, report, tapped, prefix) -> np.ndarray:
    """One decoded picture, its tensors under `prefix` in `tapped`."""

    def listener(name: str, array: np.ndarray) -> None:
        tapped[prefix + name] = np.array(array)

    report.step(0)
    latent = txt2img.sample(pipe, settings, conditioning, seed, report.on_step, listener, begin)
    if not np.isfinite(latent).all():
        raise BadInput(
            f"the latent of seed {seed} is not finite: the weights overflow in these numerics; try float32"
        )
    report.now(f"picture {report.picture}: decoding")
    image = txt2img.decode(pipe, latent, settings.tiling, settings.seams)
    report.detail(f"decoding: {report.took():.2f} s")
    listener("image", image)
    return image


def _sized(settings: Settings, given: Given) -> Settings:
    """As large as a given picture, where nobody says how large."""
    first = next((picture for picture in given if picture is not None), None)
    height, width = (512, 512) if first is None else first.shape[2:]
    return settings._replace(width=settings.width or width, height=settings.height or height)


def _aligned(pipe: Pipeline, settings: Settings, report: Report) -> Settings:
    """`drawn_size`, with a warning where that is another."""
    drawn = drawn_size(pipe, settings)
    if drawn != settings:
        goes = "up" if settings.like == "sdcpp" else "down"
        report.say(
            f"{settings.width}x{settings.height} goes {goes} to {drawn.width}x{drawn.height}: "
            f"multiples of {size_multiple(pipe, settings.like)}"
        )
    return drawn


def _warn(pipe: Pipeline, settings: Settings, report: Report) -> None:
    """Of what the user asked for and this run does not read."""
    if settings.negative_prompt and settings.cfg_scale == 1:
        distilled = pipe.variant.cfg_scale == 1
        why = f"{pipe.variant.title}'s guidance is distilled into its weights; " if distilled else ""
        report.say(f"--negative-prompt is not read: {why}only a --cfg-scale other than 1 asks for it")


def _named(conditioning: Conditioning) -> dict[str, np.ndarray]:
    """cond, cond.y, cond.mask; uncond, ..."""
    arrays: dict[str, np.ndarray | None] = {}
    for which, text in conditioning._asdict().items():
        if text is not None:
            arrays |= {which: text.context, f"{which}.y": text.y, f"{which}.mask": text.mask}
    return {name: array for name, array in arrays.items() if array is not None}


def _extras(job: Job, loras, settings: Settings) -> dict[str, str]:
    """What a PNG says besides its settings."""
    model = job.model or next(iter(job.parts.values()))
    extras = {"Model": model.name, "Numerics": job.numerics}
    extras |= {"Deviations": " ".join(job.deviations)} if job.deviations else {}
    if loras:
        extras["Lora"] = " ".join(f"{file.weights.path.name}:{strength:g}" for file, strength in loras)
        extras |= {} if job.lora_rule == "trainer" else {"Lora rule": job.lora_rule}
    if "--init-img" in job.pictures:
        extras["Denoising strength"] = f"{settings.strength:g}"
    extras |= words(settings.tiling, settings.seams)
    return extras | {"Version": f"refsd {__version__}"}


def _told(job: Job, pipe: Pipeline, settings: Settings, paths: list[Path]) -> dict:
    """For --json: what was drawn, with every default as it was filled in."""
    kept = {name: value for name, value in settings._asdict().items() if name not in ("tiling", "seams")}
    pictures = [{"path": str(path), "seed": job.seed + b} for b, path in enumerate(paths)]
    levels = [float(sigma) for sigma in sigmas(pipe, settings, "--init-img" in job.pictures)]
    return {"family": pipe.variant.name, "pictures": pictures, "settings": kept | {"sigmas": levels}}
