"""Open a checkpoint from any file or folder layout: components whose tensors have the original's names."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from refsd.families import Identity, identify, latents_of
from refsd.files.formats import open_weights
from refsd.files.json_files import read_json
from refsd.files.stored import Weights, shown
from refsd.models.catalogue import AUTOENCODERS, DENOISERS, LANGUAGE_MODELS, NETWORKS, TEXT_CONDITIONERS
from refsd.numerics.errors import BadInput
from refsd.tokenizers.textual_inversion import InversionSurvey, survey_inversion
from refsd.weights import control_lora
from refsd.weights.adapter_models import AdapterSurvey, survey_adapter
from refsd.weights.component import Component, ComponentWeights
from refsd.weights.config import component_config
from refsd.weights.culprits import Finding, culprits
from refsd.weights.detect import FoundComponent, find_components, foreign_family, is_known_extra
from refsd.weights.problems import Problems, check_order, check_storage, problems, raise_problems
from refsd.weights.results import results
from refsd.weights.size_vote import believed_shapes, voted_size

# Folder of a network that only its place tells from another with the same tensors; it counts as what the file says.
_TELLING = ("unconditional_transformer",)
FOLDERS = (
    *("unet", "transformer", *_TELLING, "vae", "text_encoder", "text_encoder_2", "text_encoder_3", "controlnet"),
    *("image_encoder", "image_embedder", "text_conditioner"),
)


def _files() -> tuple[str, ...]:
    """Return the names of weight files in diffusers' and transformers' folders; the first that exists is read."""
    stems = {
        "safetensors": ("diffusion_pytorch_model", "model"),
        "bin": ("diffusion_pytorch_model", "pytorch_model"),
    }
    names = []
    for ending, of in stems.items():
        for stem in of:
            names += [f"{stem}.{ending}", f"{stem}.{ending}.index.json", f"{stem}.fp16.{ending}"]
            names += [f"{stem}.{ending}.index.fp16.json", f"{stem}.fp16.{ending}.index.json"]
    return tuple(names)


FILES = _files()

# Command-line flag of a part -> components that its file may hold.
PART_FLAGS = {
    "--diffusion-model": (*DENOISERS, *TEXT_CONDITIONERS),
    "--vae": AUTOENCODERS,
    "--taesd": ("tae",),
    "--clip_l": ("clip",),
    "--clip_g": ("clip_g",),
    "--t5xxl": ("t5",),
    "--llm": LANGUAGE_MODELS,
    "--control-net": ("controlnet", "zimage-controlnet", "qwen-image-controlnet"),
    "--ip-adapter": ("ip-adapter",),
    "--clip_vision": ("siglip", "clip-vision"),
    "--redux": ("redux",),
    "--llm_vision": ("qwen2_5_vision", "qwen3_vision"),
}


# Tensor that marks a file -> its prediction type. Source: stable-diffusion.cpp src/stable-diffusion.cpp.
_MARKS = {"edm_vpred.sigma_max": "edm_v", "v_pred": "v"}
# The same for the value of modelspec.prediction_type. Source: github.com/Stability-AI/ModelSpec.
_SPECIFIED = {"v": "v", "epsilon": "eps"}
PREDICTION_KEY = "modelspec.prediction_type"


class Checkpoint(NamedTuple):
    """A model's files, split into components.

    family:     the model family that the components belong to; None if it is not identified
    foreign:    title of a kind of file that refsd recognises by its names but does not run; else None
    adapter:    what was found out about an adapter file; None for other files
    inversion:  the same of a textual inversion
    results:    what a file is that refsd wrote and that holds no weights; else None
    layout:     the layout of all components, or "mixed"
    components: name -> Component
    files:      every file that was opened
    unknown:    tensor names that belong to no component
    extras:     the same, but listed in detect.KNOWN_EXTRAS
    """

    path: Path
    family: Identity | None
    foreign: str | None
    layout: str
    components: dict[str, Component]
    files: list[Weights]
    unknown: list[str]
    extras: list[str]
    adapter: AdapterSurvey | None = None
    inversion: InversionSurvey | None = None
    results: str | None = None

    @property
    def marked_prediction(self) -> str | None:
        """What a tensor of the file says that the denoiser predicts: "v" or "edm_v"; None if none does."""
        return next((name for mark, name in _MARKS.items() if mark in self.extras), None)

    @property
    def specified_prediction(self) -> str | None:
        """What the metadata of the denoiser's file say that it predicts: "v" or "eps"; None if they do not."""
        said = [
            component.weights.file.metadata.get(PREDICTION_KEY)
            for name, component in self.components.items()
            if name in DENOISERS
        ]
        return _SPECIFIED.get(str(said[0])) if said else None


def open_checkpoint(path: str | Path | None, parts: Mapping[str, Path] | None = None) -> Checkpoint:
    """Open a file or a diffusers folder, and check that no tensor is missing and none is left over.

    parts: key of PART_FLAGS -> file whose component replaces the model's
    path:  file or folder; None: only the files in `parts`

    The files are mapped: they must not change while the checkpoint is used (see open_weights).

    Raises BadInput if the format is unknown, refsd does not run the model, or names are ambiguous; and in one line
    that lists all of them, for tensors that are missing, unused or misshapen.
    """
    checkpoint = survey(path, parts)
    if checkpoint.adapter is not None and checkpoint.adapter.runs:
        raise BadInput(
            f"{checkpoint.path}: {checkpoint.adapter.title} is no model: give it with --lora, and its model with -m"
        )
    if checkpoint.inversion is not None:
        raise BadInput(
            f"{checkpoint.path}: {checkpoint.inversion.title} is no model: give its folder with --embd-dir, and "
            "its model with -m"
        )
    if checkpoint.foreign is not None:
        advice = "; `refsd info` lists what is there"
        if checkpoint.foreign == control_lora.TITLE:
            advice = " by itself: give it with --control-net, and its model with -m"
        raise BadInput(f"{checkpoint.path}: refsd does not run {checkpoint.foreign}{advice}")
    if checkpoint.family is None:
        raise BadInput(
            f"{checkpoint.path}: no model that refsd knows in its {sum(map(len, checkpoint.files))} tensors"
            f"{_first(checkpoint)}; `refsd info` lists what is there"
        )
    check_storage(checkpoint.files)
    lists = [problems(component) for component in checkpoint.components.values()]
    unknown = Problems([], [shown(name) for name in checkpoint.unknown], [])
    raise_problems(checkpoint.path, checkpoint.family.title, [*lists, unknown], structure(checkpoint))
    return checkpoint


def structure(checkpoint: Checkpoint) -> list[Finding]:
    """Find what names, shapes and types show to be wrong; the most telling finding comes first."""
    unknown = set(checkpoint.unknown)
    shapes = {name: shape for file in checkpoint.files for name, shape in file.shapes.items() if name in unknown}
    return culprits(checkpoint.components.values(), shapes)


def survey(path: str | Path | None, parts: Mapping[str, Path] | None = None) -> Checkpoint:
    """Identify a file or folder from its headers alone; `parts` as in open_checkpoint.

    Raises BadInput for a file that cannot be read or is ambiguous, and for a part's file that lacks the part.
    """
    if path is None:
        if not parts:
            raise BadInput(f"no model: name a file or a folder, or its parts ({', '.join(PART_FLAGS)})")
        flag, *_ = parts
        whole = Checkpoint(Path(parts[flag]), None, None, "mixed", {}, [], [], [])
    else:
        whole = _survey_one(Path(path))
    for flag, file in (parts or {}).items():
        part = _survey_one(Path(file))
        if flag == "--control-net" and part.foreign == control_lora.TITLE:
            part = _merged(whole, part)
        whole = _joined(whole, flag, part)
    return whole


def _merged(whole: Checkpoint, part: Checkpoint) -> Checkpoint:
    """Return the ControlNet that a Control-LoRA and the model's UNet make."""
    if "unet" not in whole.components:
        raise BadInput(f"{part.path}: a {control_lora.TITLE} adds to its UNet: name the model that has it with -m")
    weights = control_lora.MergedControlNet(part.files[0], whole.components["unet"].weights)
    found, rest = find_components(part.path, weights.shapes, None)
    components = {name: _component(name, weights, where, part.path, None) for name, where in found.items()}
    return _checkpoint(part.path, None, components, [weights], rest)


def _survey_one(path: Path) -> Checkpoint:
    opened = _opened(path)
    in_files = {name: shape for weights, _ in opened for name, shape in weights.shapes.items()}
    adapter, inversion = survey_adapter(in_files), survey_inversion(in_files)
    written = results(opened[0][0]) if len(opened) == 1 else None
    if written is not None:
        files = [weights for weights, _ in opened]
        return Checkpoint(path, None, written, "mixed", {}, files, [*in_files], [], results=written)
    foreign = adapter.title if adapter else inversion.title if inversion else foreign_family(in_files)
    components: dict[str, Component] = {}
    rest: list[str] = []
    for weights, config in opened:
        given = read_json(config) if config is not None else None
        found, left = find_components(weights.path, weights.shapes, _architecture(weights, given))
        rest += left
        for name, where in found.items() if foreign is None else ():
            if name in components:
                raise BadInput(f"{path}: the component {name} is there twice")
            components[name] = _component(name, weights, where, config or weights.path, given)
    files = [weights for weights, _ in opened]
    return _checkpoint(path, foreign, components, files, rest)._replace(adapter=adapter, inversion=inversion)


def _checkpoint(
    path: Path, foreign: str | None, components: dict[str, Component], files: list[Weights], rest: list[str]
) -> Checkpoint:
    layouts = {component.layout for component in components.values()}
    shapes = {name: believed_shapes(name, component.weights.shapes) for name, component in components.items()}
    family = identify(shapes) if components else None
    if family is not None and "vae" in components:
        components = {**components, "vae": _scaled(components["vae"], family)}
    return Checkpoint(
        path,
        family,
        foreign,
        layouts.pop() if len(layouts) == 1 else "mixed",
        components,
        files,
        [name for name in rest if not is_known_extra(name)],
        [name for name in rest if is_known_extra(name)],
    )


def _scaled(vae: Component, family: Identity) -> Component:
    """Take the latent scale from the denoiser's family if the VAE's config has none."""
    scale = latents_of(family.name)
    if "scaling_factor" in vae.config or scale is None:
        return vae
    return vae._replace(config={**vae.config, "scaling_factor": scale.factor, "shift_factor": scale.shift})


def _joined(whole: Checkpoint, flag: str, part: Checkpoint) -> Checkpoint:
    """Return `whole` with its components of that flag replaced by those in `part`, one of each kind."""
    wanted = [name for name in PART_FLAGS[flag] if name in part.components]
    if not wanted:
        there = ", ".join(part.components) or part.foreign or "nothing that refsd knows"
        raise BadInput(f"{part.path}: {flag} takes {' or '.join(PART_FLAGS[flag])}; the file holds {there}")
    taken = {NETWORKS[name].kind: name for name in reversed(wanted)}
    replaced = [name for name in PART_FLAGS[flag] if NETWORKS[name].kind in taken]
    components = {name: held for name, held in whole.components.items() if name not in replaced}
    components |= {name: part.components[name] for name in taken.values()}
    rest = [*whole.unknown, *whole.extras, *part.unknown, *part.extras]
    return _checkpoint(whole.path, whole.foreign, components, [*whole.files, *part.files], rest)


def _opened(path: Path) -> list[tuple[Weights, Path | None]]:
    """Open each weight file; pair it with the config.json beside it, if there is one."""
    if not path.is_dir():
        return [(open_weights(path), None)]
    folders = [path / name for name in FOLDERS if (path / name).is_dir()] or [path]
    parts = []
    for folder in folders:
        file = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if file is None:
            raise BadInput(f"{folder}: no weights: expected {', '.join(FILES[:2])}, or model or .bin for these")
        config = folder / "config.json"
        parts.append((open_weights(file), config if config.is_file() else None))
    return parts


def component_of(weights: Weights, config: dict[str, Any]) -> Component:
    """Return the single component of a weight file; `config` is the content of its config.json.

    Raises BadInput if the tensors belong to no component or to several, and for tensors that do not fit.
    """
    shapes = weights.shapes
    found, rest = find_components(weights.path, shapes, _architecture(weights, config))
    if len(found) != 1:
        what = ", ".join(found) or "no component"
        raise BadInput(f"{weights.path}: its tensors make {what}; expected one that refsd knows")
    check_storage([weights])
    ((name, where),) = found.items()
    component = _component(name, weights, where, weights.path, config)
    strays = {name: shapes[name] for name in rest if not is_known_extra(name)}
    unknown = Problems([], [shown(name) for name in strays], [])
    findings = culprits([component], strays)
    raise_problems(weights.path, NETWORKS[name].title, [problems(component), unknown], findings)
    return component


def _architecture(weights: Weights, config: dict[str, Any] | None) -> object:
    """Return what a file is said to be: by its folder, else its GGUF metadata or the config.json beside it."""
    folder = weights.path.parent.name
    if folder in _TELLING:
        return folder
    return weights.metadata.get("general.architecture", (config or {}).get("model_type"))


def _component(
    name: str, weights: Weights, found: FoundComponent, path: Path, config: dict[str, Any] | None
) -> Component:
    sources, rest = found.place.layout.of_names(found.names).sources(found.names)
    in_file = {
        ours: source._replace(names=tuple(found.names[part] for part in source.names))
        for ours, source in sources.items()
    }
    check_order(name, weights, in_file)
    expected = NETWORKS[name].shapes(voted_size(name, ComponentWeights(weights, in_file).shapes))
    idle = {ours for ours in in_file if ours not in expected and _is_unread(name, ours)}
    extras = [part for part in rest if _is_unread(name, part)]
    mapped = ComponentWeights(weights, {ours: source for ours, source in in_file.items() if ours not in idle})
    return Component(
        name,
        mapped,
        component_config(name, path, believed_shapes(name, mapped.shapes), config),
        found.place.layout.name,
        [found.names[part] for part in rest if part not in extras],
        [found.names[part] for part in extras] + [in_file[ours].names[0] for ours in in_file if ours in idle],
    )


def _is_unread(component: str, name: str) -> bool:
    own = NETWORKS[component].unread
    return is_known_extra(name) or any(fnmatchcase(name, pattern) for pattern in own)


def _first(checkpoint: Checkpoint) -> str:
    names = [shown(name) for name in checkpoint.unknown[:3]]
    return f" ({', '.join(names)}, ...)" if names else ""
