"""Describe a checkpoint as plain data, for `refsd info` and for programs."""

import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refsd.files.stored import Header, Weights
from refsd.kernels.quant import BLOCK_TYPES
from refsd.models.catalogue import AUTOENCODERS
from refsd.models.vae.latents import LATENT_SCALES
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES
from refsd.tokenizers import vocabulary
from refsd.weights.adapter_models import AdapterSurvey
from refsd.weights.checkpoint import PREDICTION_KEY, Checkpoint
from refsd.weights.component import Component
from refsd.weights.problems import Problems, problems, storages

# Packages that contain CLIP's vocabulary or can download it -> where refsd then reads it.
PACKAGES = {
    "instant_clip_tokenizer": "the package instant-clip-tokenizer",
    "open_clip": "the package open_clip_torch",
    "huggingface_hub": f"{vocabulary.REPO} on the Hugging Face Hub, when online",
}


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all that can be read from a checkpoint's headers, as text, numbers, lists and dicts."""
    headers = [header for weights in checkpoint.files for header in weights.headers.values()]
    return {
        "path": str(checkpoint.path),
        "format": sorted({weights.format for weights in checkpoint.files}),
        "family": checkpoint.family.name if checkpoint.family else checkpoint.foreign,
        "title": checkpoint.family.title if checkpoint.family else None,
        "because": checkpoint.family.why if checkpoint.family else None,
        "runs": checkpoint.family is not None and checkpoint.foreign is None,
        "adapter": _adapter(checkpoint.adapter),
        "inversion": None if checkpoint.inversion is None else checkpoint.inversion._asdict(),
        "results": checkpoint.results,
        "layout": checkpoint.layout if checkpoint.components else None,
        **_volume(headers),
        "components": {name: _component(component) for name, component in checkpoint.components.items()},
        "latents": _latents(checkpoint),
        "predicts": _predicts(checkpoint),
        "prefixes": _prefixes(checkpoint.files),
        "unreadable_types": sorted(
            {h.type for h in headers} - SCALAR_TYPES.keys() - BLOCK_TYPES.keys() - GROUPED_TYPES.keys()
        ),
        "unexpanded": storages(checkpoint.files, "unexpanded"),
        "expanded": storages(checkpoint.files, "expanded"),
        "tokenizer": tokenizer(checkpoint.path),
        "unknown": checkpoint.unknown,
        "ignored": checkpoint.extras
        + [name for component in checkpoint.components.values() for name in component.extras],
        "metadata": _metadata(checkpoint.files),
    }


def list_tensors(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """List every tensor: name in the file, type, shape, bytes, and its component and canonical name, or None."""
    ours = {
        (id(component.weights.file), part): f"{component.name}: {name}"
        for component in checkpoint.components.values()
        for name, source in component.weights.sources.items()
        for part in source.names
    }
    return [
        {
            "name": name,
            "type": header.type,
            "shape": list(header.shape),
            "bytes": header.nbytes,
            "is": ours.get((id(weights), name)),
        }
        for weights in checkpoint.files
        for name, header in weights.headers.items()
    ]


def tokenizer(path: Path) -> str | None:
    """Say where CLIP's vocabulary would be read from, in find_tokenizer's order, without reading it."""
    beside = path if path.is_dir() else path.parent
    for name in vocabulary.FILES:
        if (beside / "tokenizer" / name).is_file():
            return str(beside / "tokenizer" / name)
    return next((says for package, says in PACKAGES.items() if importlib.util.find_spec(package)), None)


def _latents(checkpoint: Checkpoint) -> str | None:
    """Say how the denoiser scales the latents of the file's autoencoder; None if the file has no autoencoder."""
    parts = checkpoint.components
    if "vae" not in parts and not parts.keys().isdisjoint(("tae", *AUTOENCODERS)):
        return "as the denoiser has them: nothing to scale"
    if "vae" not in parts:
        return None
    config = parts["vae"].config
    if "scaling_factor" in config:
        factor, shift = config["scaling_factor"], config["shift_factor"]
        return f"the denoiser has (z - {shift:g}) * {factor:g}; vae-encoder and vae-decoder have z itself"
    wide = parts["vae"].size.latent_channels == 16
    known = [
        f"{name} (z - {of.shift:g}) * {of.factor:g}" for name, of in LATENT_SCALES.items() if wide == (of.shift > 0)
    ]
    return f"the file does not tell whose; the denoiser has, by family: {', '.join(known)}: --param latents=FAMILY"


def _predicts(checkpoint: Checkpoint) -> str | None:
    """Say what the denoiser predicts if a tensor of the file or its metadata tell."""
    prediction = checkpoint.marked_prediction or checkpoint.specified_prediction
    if prediction is None:
        return None
    zero = " (zero terminal SNR)" if "ztsnr" in checkpoint.extras else ""
    by = "" if checkpoint.marked_prediction else f", by its metadata alone ({PREDICTION_KEY})"
    return f"{prediction}{zero}{by}"


def _adapter(adapter: AdapterSurvey | None) -> dict[str, Any] | None:
    return None if adapter is None else {**adapter._asdict(), "runs": adapter.runs}


def _component(component: Component) -> dict[str, Any]:
    file = component.weights.file
    headers = [file.headers[part] for source in component.weights.sources.values() for part in source.names]
    wrong: Problems = problems(component)
    return {
        "file": str(file.path),
        "layout": component.layout,
        **_volume(headers),
        "size": component.size._asdict(),
        "config": component.config,
        **wrong._asdict(),
    }


def _volume(headers: Iterable[Header]) -> dict[str, Any]:
    headers = list(headers)
    types: dict[str, dict[str, int]] = {}
    for header in headers:
        of_type = types.setdefault(header.type, {"tensors": 0, "bytes": 0})
        of_type["tensors"] += 1
        of_type["bytes"] += header.nbytes
    return {
        "tensors": len(headers),
        "parameters": sum(math.prod(header.shape) for header in headers),
        "bytes": sum(header.nbytes for header in headers),
        "types": dict(sorted(types.items(), key=lambda item: -item[1]["bytes"])),
    }


def _prefixes(files: list[Weights]) -> dict[str, dict[str, Any]]:
    """Group tensors by their name up to the first dot; return each group's volume, largest first."""
    groups: dict[str, list[Header]] = {}
    for weights in files:
        for name, header in weights.headers.items():
            groups.setdefault(name.partition(".")[0], []).append(header)
    volumes = {prefix: _volume(headers) for prefix, headers in groups.items()}
    return dict(sorted(volumes.items(), key=lambda item: -item[1]["bytes"]))


def _metadata(files: list[Weights]) -> dict[str, str]:
    """Return the headers' metadata, long texts shortened."""
    texts = {}
    for weights in files:
        for key, value in [entry for entry in weights.metadata.items() if entry[0] not in weights.headers][:64]:
            text = str(value)
            texts[key] = text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
    return texts
