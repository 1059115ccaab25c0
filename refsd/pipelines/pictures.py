"""Run `refsd txt2img`: open the model, resolve the settings, draw each picture, write it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd import __version__
from refsd.conventions import CONVENTIONS, DEFAULT
from refsd.files.tensor_files import check_name, write_arrays
from refsd.golden.named_numerics import named
from refsd.golden.output_file import Outputs
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory, one_answer
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import IMAGE_FLAGS, ConditioningImages, read_image
from refsd.pipelines.embeddings import with_embeddings
from refsd.pipelines.hires import HiresPass, HiresSettings, resolve_hires, run_hires
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import open_pipeline, with_cached_references, with_zero_cond_t
from refsd.pipelines.plan import Plan, check_ranges, resolve
from refsd.pipelines.png import output_paths, parameters_text, to_bytes, write_png
from refsd.pipelines.preview import PreviewSettings, preview
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.report import Report
from refsd.pipelines.settings import Settings
from refsd.progress.compiling import compile_progress
from refsd.weights import open_checkpoint
from refsd.weights.loras import open_loras


class Files(NamedTuple):
    """Files and numerics of `refsd txt2img`.

    embeddings: folder
    preview: pictures of the steps
    parts:  key of PART_FLAGS -> file
    images: key of IMAGE_FLAGS -> file
    more_references: pictures to edit after that of --ref-image
    ip_images: pictures of --ip-image
    zero_cond_t, klein_kv: True if the user says that the weights are Qwen-Image-Edit 2511's, or FLUX.2 klein KV's
    """

    model: Path | None
    output: Path
    vocab: Path | None = None
    numerics: str = "float32"
    deviations: tuple[str, ...] = ()
    taps: Path | None = None
    verbose: bool = False
    loras: tuple[str, ...] = ()
    parts: Mapping[str, Path] = {}
    images: Mapping[str, Path] = {}
    tokenizer: Path | None = None
    json: bool = False
    lora_rule: str = "trainer"
    embeddings: Path | None = None
    preview: PreviewSettings = PreviewSettings()
    more_references: tuple[Path, ...] = ()
    ip_images: tuple[Path, ...] = ()
    zero_cond_t: bool = False
    klein_kv: bool = False


def draw(files: Files, settings: Settings, hires: HiresSettings | None = None) -> list[Path]:
    """Draw and write all pictures -> their paths. Raises BadInput, in one line, before computing anything.

    hires: of a second pass in a larger size; None: there is none
    """
    report = Report(files.verbose)
    check_ranges(settings)
    files.preview.check()
    arithmetic = named(files.numerics, [*files.deviations])
    named_images = {IMAGE_FLAGS[flag]: read_image(flag, path) for flag, path in files.images.items()}
    more = tuple(read_image("--ref-image", path) for path in files.more_references)
    prompts = tuple(read_image("--ip-image", path) for path in files.ip_images)
    images = ConditioningImages()._replace(**named_images, more_references=more, ip=prompts)
    checkpoint = open_checkpoint(files.model, files.parts)
    loras = open_loras(files.loras, checkpoint, files.lora_rule)
    tokenizers = Tokenizers(files.vocab, files.tokenizer, files.model)
    pipe = open_pipeline(checkpoint, tokenizers, arithmetic, memory() // 4, loras)
    if files.zero_cond_t:
        pipe = with_zero_cond_t(pipe)
    if files.klein_kv:
        pipe = with_cached_references(pipe, CONVENTIONS[settings.like])
    if files.embeddings is not None:
        pipe, lines = with_embeddings(pipe, files.embeddings, CONVENTIONS.get(settings.like, DEFAULT))
        for line in lines:
            report.detail(line)
    vocabularies = tokenizers.sources(pipe.encoders.values())
    plan = resolve(pipe, settings, images)
    files.preview.check_use(pipe)
    second = None if hires is None else resolve_hires(pipe, settings, plan, hires, arithmetic)
    for notice in [*plan.notices, *(second.plan.notices if second else ())]:
        report.say(notice)
    pipe, layers = pipe.decoding_as(plan.convention), plan.qwen_image_layers or 1
    paths = _checked_paths(files, layers * len(plan.seeds))
    report.detail(f"vocabulary: {', '.join(vocabularies)}")

    taps: dict[str, np.ndarray] = {}
    with compile_progress(), one_answer(arithmetic.numerics):
        try:
            report.now("encoding the prompt")
            conditioning = txt2img.encode(pipe, plan)
            taps |= conditioning.tensors()
            report.detail(f"text encoding: {report.took():.2f} s")
            for b, seed in enumerate(plan.seeds):

                def listener(name: str, array: np.ndarray, prefix: str = f"{b}.") -> None:
                    taps[prefix + name] = np.array(array)

                def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
                    if files.preview.due(i):
                        pixels = preview(pipe, x if files.preview.noisy else denoised, files.preview)
                        write_png(files.preview.path, pixels, f"{plan.prompt}\nStep: {i + 1}")
                        report.show(pixels)
                    report.step(i + 1)

                start = initial_latent(pipe, plan, seed)
                report.begin(f"{b + 1}/{len(plan.seeds)}", len(plan.sigmas) - 1)
                latent = txt2img.sample(pipe, plan, conditioning, seed, on_step, listener, start)
                _check_finite(latent, seed)
                if plan.cache is not None:
                    report.say(f"{plan.cache}: {_reused(taps, b)} of {len(plan.sigmas) - 1} steps reused")
                if second is not None:
                    report.begin(f"{b + 1}/{len(plan.seeds)}, enlarged", len(second.plan.sigmas) - 1)
                    heard = lambda name, array, tell=listener: tell(f"hires.{name}", array)
                    latent = run_hires(pipe, second, latent, conditioning, seed, on_step, heard)
                    _check_finite(latent, seed)
                report.now(f"picture {report.picture}: decoding")
                image = txt2img.decode(pipe, latent, plan.tiling, plan.circular)
                report.detail(f"decoding: {report.took():.2f} s")
                listener("image", image)
                parameters = _file_parameters(files, loras, plan, second)
                text = parameters_text(plan, seed, parameters)
                for k, path in enumerate(paths[b * layers : (b + 1) * layers]):
                    write_png(path, to_bytes(image[k : k + 1]), text)
                    report.say(f"{path}: {image.shape[3]}x{image.shape[2]}, seed {seed}")
        finally:
            report.status.stop()
    if files.taps is not None:
        write_arrays(
            files.taps, taps, {"tool": "refsd txt2img", "version": __version__, "numerics": files.numerics}
        )
    if files.json:
        pictures = [{"path": str(path), "seed": plan.seeds[n // layers]} for n, path in enumerate(paths)]
        recorded = plan.record() | ({} if second is None else {"hires": second.record()})
        print(json.dumps({"family": pipe.variant.name, "pictures": pictures, "settings": recorded}))
    return paths


def _reused(taps: Mapping[str, np.ndarray], picture: int) -> int:
    """Count the steps in which a cache answered the call with the prompt."""
    end = ".cond.reused"
    return sum(int(y) for name, y in taps.items() if name.startswith(f"{picture}.calls.") and name.endswith(end))


def _check_finite(latent: np.ndarray, seed: int) -> None:
    if not np.isfinite(latent).all():
        raise BadInput(
            f"the latent of seed {seed} is not finite: the weights overflow in these numerics; try float32"
        )


def _checked_paths(files: Files, count: int) -> list[Path]:
    """Return each picture's path. Raises BadInput now for files that could not be written at the end."""
    outputs, paths = Outputs(), output_paths(files.output, count)
    for path in paths:
        outputs.add("--output", path)
    if files.taps is not None:
        check_name(files.taps)
        outputs.add("--taps", files.taps)
    if files.preview.method != "none":
        outputs.add("--preview-path", files.preview.path)
    return paths


def _file_parameters(files: Files, loras, plan: Plan, hires: HiresPass | None) -> dict[str, str]:
    """Return the entries of a PNG's parameters about files and numerics."""
    model = files.model or next(iter(files.parts.values()))
    parameters = {"Model": model.name, "Numerics": files.numerics}
    parameters |= {"Deviations": " ".join(files.deviations)} if files.deviations else {}
    if loras:
        parameters["Lora"] = " ".join(f"{file.weights.path.name}:{strength:g}" for file, strength in loras)
        parameters |= {} if files.lora_rule == "trainer" else {"Lora rule": files.lora_rule}
    if plan.images.init is not None:
        parameters["Denoising strength"] = f"{plan.strength:g}"
    return parameters | ({} if hires is None else hires.parameters())
