"""A checkpoint: components with the original's names, wherever and however they are kept."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.golden.errors import BadInput
from refsd.golden.tensor import StoredTensor
from refsd.weights.architecture import (
    CLIPSize,
    Shape,
    Shapes,
    UNetSize,
    VAESize,
    clip_shapes,
    unet_shapes,
    vae_shapes,
)
from refsd.weights.config import component_config
from refsd.weights.detect import Found, find_components, foreign_family, is_known_extra
from refsd.weights.files import open_weights, read_json
from refsd.weights.finite import not_finite
from refsd.weights.keymaps import Source
from refsd.weights.sizes import clip_size, unet_size, vae_size
from refsd.weights.stored import Weights, shown

FOLDERS = ("unet", "vae", "text_encoder")
FILES = (
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.fp16.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    "model.fp16.safetensors",
)
PIPELINES = {
    "StableDiffusionXLPipeline": "SDXL",
    "StableDiffusion3Pipeline": "SD3",
    "FluxPipeline": "Flux",
}
NO_WEIGHTS = {"i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool", "c64"}

_SIZES = {"unet": unet_size, "vae": vae_size, "clip": clip_size}
_SHAPES = {"unet": unet_shapes, "vae": vae_shapes, "clip": clip_shapes}


class ComponentWeights(Mapping[str, StoredTensor]):
    """Canonical name -> tensor, read from the file when asked for.

    The first reading of a tensor looks at its values: NaN or infinity raises BadInput.
    """

    def __init__(self, weights: Weights, sources: dict[str, Source]):
        self.file = weights
        self.sources = sources
        file_shapes = {name: header.shape for name, header in weights.headers.items()}
        self.shapes: Shapes = {name: source.shape(file_shapes) for name, source in sources.items()}
        self._seen: set[str] = set()

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self.sources[name].read(self.file)
        if name not in self._seen:
            bad = not_finite(tensor)
            if bad:
                raise BadInput(
                    f"{self.file.path}: tensor {shown(self.sources[name].names[0])}: {bad} of its values are NaN "
                    "or infinite; the file is damaged, or was converted to a type that is too narrow"
                )
            self._seen.add(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __contains__(self, name: object) -> bool:
        return name in self.sources


class Component(NamedTuple):
    """
    name:    "unet", "vae" or "clip"
    weights: under the original checkpoint's names, without the component's prefix
    config:  what the shapes do not tell: num_heads, num_groups, ...
    layout:  "ldm" or "diffusers"
    unused:  names in the file that stand with the component and make none of its tensors
    extras:  the same, but known: what training or another model left there
    """

    name: str
    weights: ComponentWeights
    config: dict[str, Any]
    layout: str
    unused: list[str]
    extras: list[str]

    @property
    def size(self) -> UNetSize | VAESize | CLIPSize:
        return _SIZES[self.name](self.weights.shapes)


class Problems(NamedTuple):
    """What is missing, what no model reads, and what has another shape or type: a few words each."""

    missing: list[str]
    unused: list[str]
    misshapen: list[str]


class Checkpoint(NamedTuple):
    """
    family:     "sd15", or what refsd does not run yet ("SDXL"), or None where nothing is known
    layout:     "ldm", "diffusers", or "mixed"
    components: name -> Component
    files:      every file that was opened
    unknown:    names that stand in no component
    extras:     the same, but known
    """

    path: Path
    family: str | None
    layout: str
    components: dict[str, Component]
    files: list[Weights]
    unknown: list[str]
    extras: list[str]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a file or a diffusers folder, and check that every tensor is there and nothing else.

    Reads headers only. Raises BadInput: not such a file, no family that refsd runs, or tensors that
    are missing, unused or misshapen, all of them in one line.
    """
    checkpoint = survey(path)
    if checkpoint.family is None:
        raise BadInput(
            f"{path}: no model of Stable Diffusion 1.x found in its {sum(map(len, checkpoint.files))} tensors"
            f"{_first(checkpoint)}; `refsd info` lists what is there"
        )
    if checkpoint.family != "sd15":
        raise BadInput(f"{path}: refsd does not run {checkpoint.family} yet; it runs Stable Diffusion 1.x")
    lists = [problems(component) for component in checkpoint.components.values()]
    unknown = Problems([], [shown(name) for name in checkpoint.unknown], [])
    _raise(path, [*lists, unknown])
    return checkpoint


def check(component: Component) -> None:
    """Raise one BadInput that lists the component's missing, unused and misshapen tensors."""
    _raise(component.weights.file.path, [problems(component)])


def problems(component: Component) -> Problems:
    """Compare a component with the table of its architecture, at the size that its shapes tell."""
    weights = component.weights
    expected: Shapes = _SHAPES[component.name](component.size)
    missing = [f"{component.name} {shown(name)} {list(expected[name])}" for name in expected if name not in weights]
    unused = [f"{component.name} {shown(name)}" for name in component.unused]
    unused += [
        f"{component.name} {shown(weights.sources[name].names[0])}" for name in weights if name not in expected
    ]
    misshapen = []
    for name, shape in weights.shapes.items():
        parts = [part for part in weights.sources[name].names if part not in weights.file.scalings]
        kinds = {weights.file.headers[part].type for part in parts}
        if name in expected and shape != expected[name]:
            misshapen.append(f"{component.name} {shown(name)} {list(shape)} for {list(expected[name])}")
        elif name in expected and kinds & NO_WEIGHTS:
            misshapen.append(f"{component.name} {shown(name)} of type {', '.join(kinds)} for a float type")
    return Problems(missing, unused, misshapen)


def survey(path: str | Path) -> Checkpoint:
    """What a file or folder is, as far as its headers tell. Raises BadInput only for what cannot be read."""
    path = Path(path)
    parts = _parts(path)
    names = [name for weights, _ in parts for name in weights]
    family = _pipeline_family(path) or foreign_family(names)
    components: dict[str, Component] = {}
    rest: list[str] = []
    for weights, config in parts:
        found, left = find_components(weights)
        rest += left
        if family is not None:
            continue
        for name, where in found.items():
            if name in components:
                raise BadInput(f"{path}: the component {name} is there twice")
            family = _other_family(weights, where)
            if family is not None:
                break
            components[name] = _component(weights, where, config)
    if family is not None:
        components = {}
    elif components:
        family = "sd15"
    layouts = {component.layout for component in components.values()}
    return Checkpoint(
        path,
        family,
        layouts.pop() if len(layouts) == 1 else "mixed",
        components,
        [weights for weights, _ in parts],
        [name for name in rest if not is_known_extra(name)],
        [name for name in rest if is_known_extra(name)],
    )


def _parts(path: Path) -> list[tuple[Weights, Path | None]]:
    """Each file that holds weights, and the config.json beside it."""
    if not path.is_dir():
        return [(open_weights(path), None)]
    folders = [path / name for name in FOLDERS if (path / name).is_dir()] or [path]
    parts = []
    for folder in folders:
        file = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if file is None:
            pickled = any(folder.glob("*.bin"))
            hint = "found a pickle (.bin), convert it to safetensors" if pickled else f"expected {', '.join(FILES)}"
            raise BadInput(f"{folder}: no weights: {hint}")
        config = folder / "config.json"
        parts.append((open_weights(file), config if config.is_file() else None))
    return parts


def _component(weights: Weights, found: Found, config: Path | None) -> Component:
    name = found.place.component
    sources, rest = found.place.keymap(found.names).sources(found.names)
    in_file = {
        ours: source._replace(names=tuple(found.names[part] for part in source.names))
        for ours, source in sources.items()
    }
    extras = [found.names[part] for part in rest if is_known_extra(found.names[part])]
    extras += [source.names[0] for source in in_file.values() if is_known_extra(source.names[0])]
    in_file = {ours: source for ours, source in in_file.items() if not is_known_extra(source.names[0])}
    unused = [found.names[part] for part in rest if not is_known_extra(found.names[part])]
    mapped = ComponentWeights(weights, in_file)
    size = _SIZES[name](mapped.shapes)
    channels = size.hidden if isinstance(size, CLIPSize) else size.channels
    settings = component_config(
        name, config or weights.path, channels, read_json(config) if config is not None else None
    )
    return Component(name, mapped, settings, found.place.layout, unused, extras)


def _pipeline_family(path: Path) -> str | None:
    index = path / "model_index.json"
    if not index.is_file():
        return None
    kind = read_json(index).get("_class_name")
    return PIPELINES.get(kind) if isinstance(kind, str) else None


def _other_family(weights: Weights, found: Found) -> str | None:
    """A family that has SD 1.x's names and other shapes."""
    shapes: dict[str, Shape] = {part: weights.headers[name].shape for part, name in found.names.items()}
    if found.place.component == "unet":
        proj_in = [shape for part, shape in shapes.items() if part.endswith(".proj_in.weight")]
        return "SD2" if proj_in and all(len(shape) == 2 for shape in proj_in) else None
    if found.place.component == "clip":
        tokens = next((s for part, s in shapes.items() if part.endswith("token_embedding.weight")), ())
        return "OpenCLIP" if tokens[-1:] in ((1024,), (1280,)) else None
    latent = shapes.get("decoder.conv_in.weight", ())[1:2]
    return "the autoencoder of Flux and SD3" if latent == (16,) else None


def _raise(path: str | Path, lists: list[Problems]) -> None:
    said = []
    for word, of_all in zip(Problems._fields, zip(*lists, strict=True), strict=True):
        entries = [entry for of_one in of_all for entry in of_one]
        if entries:
            more = ", ..." if len(entries) > 10 else ""
            said.append(f"{len(entries)} {word}: {', '.join(entries[:10])}{more}")
    if said:
        raise BadInput(f"{path}: the tensors do not fit Stable Diffusion 1.x: {'; '.join(said)}")


def _first(checkpoint: Checkpoint) -> str:
    names = [shown(name) for name in checkpoint.unknown[:3]]
    return f" ({', '.join(names)}, ...)" if names else ""
