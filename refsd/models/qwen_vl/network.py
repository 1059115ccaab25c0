"""The language models of Qwen2.5-VL and Qwen3-VL, as text encoders: sizes, tensors, names in files.

Qwen2.5-VL 7B and Qwen3-VL 4B encode prompts. Their vision towers, which
stand in the same files, are networks of their own (qwen_vision.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.language_model.config import LANGUAGE_MODEL_FIELDS, llm_config, turning
from refsd.models.language_model.llama_cpp_names import GGUF_ENDS, GGUF_LAYER, HEADLESS, gguf_keymap
from refsd.models.language_model.network import LLM_PREFIXES, NOT_TEXT, decoder_size
from refsd.models.qwen3.network import QWEN3_4B, Qwen3Size, qwen3_shapes, qwen3_size
from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shape, Shapes
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.naming import ENCODER_LAYOUTS, namings
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Layout, Location, Network, ReadConfig, counted, fixed
from refsd.networks.recipe import alone
from refsd.numerics.errors import BadInput


class Qwen25Size(NamedTuple):
    """Dimensions of Qwen2.5-VL's language model; the defaults are the 7B's. A head has 128 channels."""

    hidden: int = 3584
    layers: int = 28
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    mlp: int = 18944
    vocab: int = 152064


QWEN2_5_VL_7B = Qwen25Size()
QWEN3_VL_4B = QWEN3_4B
QWEN3_VL_8B = Qwen3Size(hidden=4096, mlp=12288)


def qwen2_5_vl_shapes(size: Qwen25Size) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' Qwen2_5_VLTextModel."""
    shapes: Shapes = {}
    for name, shape in qwen3_shapes(Qwen3Size(*size)).items():
        if not name.endswith(("q_norm.weight", "k_norm.weight")):
            shapes[name] = shape
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            shapes[name.removesuffix("weight") + "bias"] = shape[:1]
    return shapes


def qwen2_5_vl_size(shapes: Mapping[str, Shape]) -> Qwen25Size:
    """Infer the size from shapes under transformers' names. Shapes do not reveal head_dim; all models have 128."""
    return decoder_size(QWEN2_5_VL_7B, shapes, QWEN2_5_VL_7B.head_dim)


_IN_MODEL = "model.language_model."
_PREFIXES = ("model.", _IN_MODEL, "language_model.model.", "language_model.", "")


def qwen3_vl_shapes(size: Qwen3Size) -> Shapes:
    """Return the shapes of all tensors: Qwen3's, under the released model's names."""
    return {_IN_MODEL + name.removeprefix("model."): shape for name, shape in qwen3_shapes(size).items()}


def qwen3_vl_size(shapes: Mapping[str, Shape]) -> Qwen3Size:
    """Infer the size from shapes under the released model's names."""
    return qwen3_size({"model." + name.removeprefix(_IN_MODEL): shape for name, shape in shapes.items()})


def qwen2_5_vl_keymap() -> Keymap:
    """Map names to and from transformers 4's and ComfyUI's (`model.layers`).

    Also reads transformers 5's (`model.language_model.layers`), those of older exports (`language_model.model.`),
    and the language model's alone. Vision weights (`visual.`, `model.visual.`) are ignored.
    """
    return Keymap(prefix_rows((f"model.{name}", at + name) for at in _PREFIXES for name in HEADLESS))


def qwen3_vl_keymap(first: str = _IN_MODEL) -> Keymap:
    """Map names to and from the released Qwen3-VL's; read all prefixes of Qwen2.5-VL's, and write `first`."""
    prefixes = [first, *(at for at in _PREFIXES if at != first)]
    return Keymap(prefix_rows((_IN_MODEL + name, at + name) for at in prefixes for name in HEADLESS))


def qwen2_5_vl_gguf_keymap(layers: int = 28) -> Keymap:
    """Map transformers' names to and from llama.cpp's GGUF of arch qwen2vl, which has no vision tower."""
    each = [row for row in GGUF_LAYER if "_norm" not in row[0] or "layernorm" in row[0]]
    return gguf_keymap(GGUF_ENDS, each, layers, "model.layers", "blk")


def qwen3_vl_gguf_keymap(layers: int = 36) -> Keymap:
    """Map transformers' names to and from llama.cpp's GGUF of arch qwen3vl: the names of Qwen3's."""
    ends = [(_IN_MODEL + ours.removeprefix("model."), theirs) for ours, theirs in GGUF_ENDS]
    return gguf_keymap(ends, GGUF_LAYER, layers, f"{_IN_MODEL}layers", "blk")


_NAMES_2_5 = fixed("transformers", qwen2_5_vl_keymap)
_NAMES_3 = fixed("transformers", qwen3_vl_keymap)
_NOT_TEXT = (*NOT_TEXT, "visual.*", "model.visual.*")
_FIELDS = {
    name: values
    for name, values in LANGUAGE_MODEL_FIELDS.items()
    if name not in ("rope_type", "rope_scaling", "sliding_window")
} | {"rope_type": ("default", "mrope")}


def _reader(theta: float, sections: list[int]) -> ReadConfig:
    """Return the reader of config.json. theta, sections: by default"""

    def read(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
        found = given.get("mrope_section", sections)
        whole = type(found) is list and all(type(n) is int and n >= 0 for n in found)
        if not whole or len(found) != 3 or sum(found) != sum(sections):
            raise BadInput(
                f"{path}: mrope_section is {shown_value(found)}; three numbers of sum {sum(sections)} expected"
            )
        return {"sections": found, **turning(theta, 1e-6)(path, shapes, given)}

    return read


def _gguf(keymap, layers: int) -> Layout:
    return counted("llama.cpp", keymap, {"blk.": layers}, lambda size: (size.layers,))


def _config(size, architecture: str, model_type: str, theta: int, sections: list[int], **rope) -> dict:
    """Return config.json of the language model alone, which is what refsd writes."""
    config = llm_config(size, architecture, model_type, 1e-06, theta)
    parameters = {"rope_type": "default", "rope_theta": theta, "mrope_section": sections, **rope}
    return {**config, "use_sliding_window": False, "rope_parameters": parameters}


_TINY = Qwen25Size(512, 2, 4, 2, mlp=256, vocab=1000)  # transformers wants as many channels as the heads have
_PLACES_2_5 = tuple(f"{at}layers.0.self_attn.{name}_proj.bias" for at in _PREFIXES for name in "qkv")
# Under `model.layers` and in a GGUF, names are Qwen3's; only its vision tower or the architecture tell it apart.
_PLACES_3 = (
    *(f"{at}layers.0.self_attn.q_norm." for at in _PREFIXES[1:4]),
    "visual.deepstack_merger_list.",
    "model.visual.deepstack_merger_list.",
)

QWEN2_5_VL = Network(
    "qwen2_5_vl",
    "Qwen2.5-VL",
    "text encoder",
    qwen2_5_vl_size,
    qwen2_5_vl_shapes,
    places=(
        Location(_NAMES_2_5, ("text_encoders.qwen25_7b.transformer.", *LLM_PREFIXES), _PLACES_2_5),
        Location(_gguf(qwen2_5_vl_gguf_keymap, 28), ("",), tuple(f"blk.0.attn_{name}.bias" for name in "qkv")),
    ),
    folder=Folder(
        "text_encoder",
        TRANSFORMERS_FILE,
        _NAMES_2_5,
        lambda size: _config(size, "Qwen2_5_VLTextModel", "qwen2_5_vl_text", 1000000, [16, 24, 24]),
    ),
    computed=_FIELDS,
    config=_reader(1e6, [16, 24, 24]),
    nested=("text_config", "rope_scaling", "rope_parameters"),
    unread=_NOT_TEXT,
    adapters=namings(ENCODER_LAYOUTS, ("lora_te_", "lora_te1_"), ("text_encoder.",)),
    before=("mistral", "qwen3"),
    recipes={"qwen2.5-vl-7b": alone("qwen2_5_vl", QWEN2_5_VL_7B, _TINY, "qwen2vl")},
)
QWEN3_VL = Network(
    "qwen3_vl",
    "Qwen3-VL",
    "text encoder",
    qwen3_vl_size,
    qwen3_vl_shapes,
    places=(
        Location(_NAMES_3, LLM_PREFIXES, _PLACES_3),
        Location(_NAMES_3, ("",), ("model.layers.", "layers."), ("qwen3_vl", "qwen3_vl_text")),
        Location(_gguf(qwen3_vl_gguf_keymap, 36), ("",), ("blk.0.attn_q_norm.",), ("qwen3vl",)),
    ),
    folder=Folder(
        "text_encoder",
        TRANSFORMERS_FILE,
        fixed("transformers", lambda: qwen3_vl_keymap("model.")),
        lambda size: _config(
            size, "Qwen3VLTextModel", "qwen3_vl_text", 5000000, [24, 20, 20], mrope_interleaved=True
        ),
    ),
    computed={
        **_FIELDS,
        "mrope_interleaved": (True,),
    },
    config=_reader(5e6, [24, 20, 20]),
    nested=("text_config", "rope_scaling", "rope_parameters"),
    unread=_NOT_TEXT,
    before=("mistral", "qwen3"),
    recipes={
        "qwen3-vl-4b": alone("qwen3_vl", QWEN3_VL_4B, Qwen3Size(128, 3, 6, 2, mlp=256, vocab=1000), "qwen3vl")
    },
)
NETWORKS = (QWEN2_5_VL, QWEN3_VL)
