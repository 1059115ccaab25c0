"""Identify a set of tensor names: find the components and their layouts, and what refsd cannot run."""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import NamedTuple

from refsd.files.stored import shown
from refsd.models.catalogue import DENOISERS, NETWORKS
from refsd.networks.dimensions import Shape, count
from refsd.networks.network import Layout
from refsd.numerics.errors import BadInput

# Width and depth of OpenCLIP bigG, which no other CLIP text encoder has.
_BIGG, _BIGG_LAYERS = 1280, 32

_CLIP_LAYERS = ("text_model.encoder.layers.", "encoder.layers.", "transformer.resblocks.")

# Prefixes of CLIP's picture encoder, which refsd ignores in a file that also has the text encoder.
PICTURE_TOWERS = ("vision_model.", "visual.")
_TEXT_TOWERS = ("text_model.", "transformer.resblocks.")

# Parts of names of a language model's layer, and of the vision tower that refsd ignores beside one.
_DECODER, _VISION = ".input_layernorm.", "visual."
_QWEN_TOWER = "visual.merger."
# Of Qwen-Image's ControlNet, which has a txt_norm, as of other transformers' that refsd does not run.
_QWEN_HINT = "controlnet_x_embedder."

# (substring of a tensor name, what the file is); the first match counts.
FOREIGN = (
    ("visual.", "CLIP's picture encoder under OpenCLIP's names"),
    ("img_emb.", "Wan 2.1's image to video with image embeddings"),
    ("condition_embedder.image_embedder.", "Wan 2.1's image to video with image embeddings"),
    ("vace_blocks.", "Wan VACE"),
    ("lora_controlnet", "Control-LoRA"),
    ("image_proj.perceiver_resampler.", "IP-Adapter FaceID plus"),
    ("ip_adapter.0.to_k_lora.", "IP-Adapter FaceID"),
    ("controlnet_x_embedder.", "a transformer's ControlNet"),
    (".quant_state.", "4-bit weights of bitsandbytes without their codes"),
    (".SCB", "8-bit weights of bitsandbytes without their codes"),
    ("tok_embeddings.", "a language model under Mistral's own names (consolidated.safetensors)"),
    (".weight._data", "weights of optimum-quanto"),
    (".weight_packed", "packed weights of compressed-tensors"),
    (".qweight", "4-bit weights of GPTQ or Nunchaku"),
)

# Tensors that real files hold besides the model; refsd ignores them.
KNOWN_EXTRAS = (
    "model_ema.*",
    "betas",
    "alphas_cumprod*",
    "sqrt_*",
    "log_one_minus_alphas_cumprod",
    "posterior_*",
    "ddim_*",
    "denoiser.sigmas",
    "logvar",
    "lvlb_weights",
    "scale_factor",
    "global_step",
    "v_pred",
    "ztsnr",
    "edm_mean",
    "edm_std",
    "edm_vpred.*",
    "*spiece_model",
    "*tekken_model",
    "*.position_ids",
    "position_ids",
    "*logit_scale",
    "*text_projection",
    "*text_projection.weight",
    "*visual_projection.weight",
    "first_stage_model.loss.*",
    "loss.*",
    "embedding_manager.*",
    "safety_checker.*",
    "depth_model.*",
    "low_scale_model.*",
    "noise_augmentor.*",
    "embedder.model.*",
    "*.text_model.encoder.layers.*.self_attn.causal_mask",
    *(name for network in NETWORKS.values() for name in network.beside),
)


class Candidate(NamedTuple):
    """A place for a component: it is under `prefix` if some name begins with `prefix` and one of `witnesses`.

    architectures: the file must name one of these; (): any
    shaped:        shapes in the file -> True if they can be the component's
    """

    component: str
    layout: Layout
    prefix: str
    witnesses: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    shaped: Callable[[Mapping[str, Shape]], bool] = lambda shapes: True


# In order of preference: the first candidate of a component whose witness occurs is taken.
CANDIDATES = tuple(
    Candidate(network.name, place.layout, prefix, place.witnesses, place.architectures, place.shaped)
    for network in NETWORKS.values()
    for place in network.places
    for prefix in place.prefixes
)


class FoundComponent(NamedTuple):
    """A component in a file: its place, and a map from each name without the prefix to the name in the file."""

    place: Candidate
    names: dict[str, str]


def foreign_family(names: Iterable[str]) -> str | None:
    """Return the title of a model or file that refsd does not run, recognised by some name; else None."""
    names = [name for name in names if not is_known_extra(name)]
    if any(name.startswith(_TEXT_TOWERS) for name in names):
        names = [name for name in names if not name.startswith(PICTURE_TOWERS)]
    if any(_DECODER in name or _QWEN_TOWER in name for name in names):
        names = [name for name in names if _VISION not in name]
    if any(name.endswith("txt_norm.weight") for name in names):
        names = [name for name in names if _QWEN_HINT not in name]
    text = "\n".join(names)
    return next((family for part, family in FOREIGN if part in text), None)


def find_components(
    path: object, shapes: Mapping[str, Shape], architecture: object = None
) -> tuple[dict[str, FoundComponent], list[str]]:
    """Find the components, and the names that belong to none.

    architecture: a GGUF's general.architecture, or the model_type of the config.json beside the file
    At most one component has names without a prefix; it is the first in CANDIDATES that fits.

    Raises BadInput if the names fit two denoisers, or one component in two places.
    """
    found: dict[str, FoundComponent] = {}
    taken: set[str] = set()
    towers: set[str] = set()
    ordered = sorted(shapes)
    places = [place for place in CANDIDATES if any(_is_first_part(start, ordered) for start in _starts(place))]
    prefixes = tuple({place.prefix for place in places if place.prefix})
    for place in places:
        if place.prefix == "" and _is_bare(found):
            continue
        if (place.architectures and architecture not in place.architectures) or not place.shaped(shapes):
            continue
        left = [name for name in shapes if name not in taken]
        if not place.prefix:
            left = [name for name in left if not name.startswith(prefixes)]
            if NETWORKS[place.component].kind == "image encoder" and any(
                name.startswith(_TEXT_TOWERS) for name in left
            ):
                continue  # a whole CLIP is read for its text encoder
        inside = [name for name in left if name.startswith(place.prefix)]
        # The vision tower, which is found first, tells Qwen3-VL's language model from Qwen3.
        seen = [*left, *towers] if NETWORKS[place.component].kind == "text encoder" else left
        if inside and _witnessed(place, seen) and not _outnumbered(place, left, shapes):
            here = FoundComponent(place, {name[len(place.prefix) :]: name for name in inside})
            component = _bigg_or(place.component, here, shapes)
            if component in found:
                _ambiguous(path, component, found[component], component, here)
            found[component] = here
            taken.update(inside)
            towers.update(inside if NETWORKS[component].kind == "image encoder" else ())
    denoisers = [component for component in DENOISERS if component in found]
    if len(denoisers) > 1:
        largest = max(denoisers, key=lambda component: len(found[component].names))
        for component in denoisers:
            if component != largest and _is_scrap(found[component], found[largest]):
                taken -= set(found.pop(component).names.values())
    denoisers = [component for component in denoisers if component in found]
    if len(denoisers) > 1:
        first, second = denoisers[:2]
        _ambiguous(path, first, found[first], second, found[second])
    return found, [name for name in shapes if name not in taken]


def _is_scrap(found: FoundComponent, largest: FoundComponent) -> bool:
    """True for tensors that are too few for a second denoiser: foreign layers in a file."""
    return len(found.names) * 2 < len(largest.names)


def _outnumbered(place: Candidate, names: Collection[str], shapes: Mapping[str, Shape]) -> bool:
    """True if another denoiser under the same prefix explains over twice as many of the names."""
    if place.component not in DENOISERS:
        return False
    rivals = [
        other
        for other in CANDIDATES
        if other.prefix == place.prefix and other.component in DENOISERS and other.component != place.component
        if _witnessed(other, names)
    ]
    own = _explained(place, names, shapes) if rivals else 0
    return any(_explained(rival, names, shapes) > 2 * own for rival in rivals)


def _explained(place: Candidate, names: Collection[str], shapes: Mapping[str, Shape]) -> int:
    """Count the tensors under a place's prefix that its network has."""
    inside = {name[len(place.prefix) :]: name for name in names if name.startswith(place.prefix)}
    sources, _ = place.layout.of_names(inside).sources(inside)
    network = NETWORKS[place.component]
    in_file = {name: shapes[full] for name, full in inside.items()}
    ours = {name: source.shape(in_file) for name, source in sources.items()}
    return len(network.shapes(network.size(ours)).keys() & ours.keys())


_KNOWN_EXTRA = re.compile("|".join(map(translate, KNOWN_EXTRAS)))


def is_known_extra(name: str) -> bool:
    return _KNOWN_EXTRA.match(name) is not None


def _bigg_or(component: str, found: FoundComponent, shapes: Mapping[str, Shape]) -> str:
    """Return "clip_g" for an encoder of bigG's width or depth, whose names are those of OpenAI's ("clip")."""
    if component != "clip":
        return component
    table = next((shapes[name] for part, name in found.names.items() if _is_table(part)), ())
    layers = max(count(found.names, prefix, 0) for prefix in _CLIP_LAYERS)
    return "clip_g" if _BIGG in table or layers == _BIGG_LAYERS else component


def _is_table(part: str) -> bool:
    return part.endswith("token_embedding.weight")


def _ambiguous(path: object, one: str, here: FoundComponent, other: str, there: FoundComponent) -> None:
    def described(component: str, found: FoundComponent) -> str:
        prefix = f"under {shown(found.place.prefix)}" if found.place.prefix else "without prefix"
        example = next(iter(found.names.values()))
        where = f"{component} in {found.place.layout.name}'s layout {prefix}"
        return f"{where} ({len(found.names)} tensors, as {shown(example)})"

    raise BadInput(
        f"{path}: ambiguous: {described(one, here)}, and {described(other, there)}; split the file, name the parts "
        "(--diffusion-model, --vae, --clip_l, --clip_g, --t5xxl, --llm)"
    )


def _witnessed(place: Candidate, names: Iterable[str]) -> bool:
    starts = _starts(place)
    return any(name.startswith(starts) for name in names)


def _starts(place: Candidate) -> tuple[str, ...]:
    return tuple(place.prefix + witness for witness in place.witnesses)


def _is_first_part(start: str, ordered: Sequence[str]) -> bool:
    """True if one of the sorted names begins with `start`."""
    here = bisect_left(ordered, start)
    return here < len(ordered) and ordered[here].startswith(start)


def _is_bare(found: Mapping[str, FoundComponent]) -> bool:
    return any(component.place.prefix == "" for component in found.values())
