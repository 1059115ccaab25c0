"""Text encoders of zeros, which sd-cli asks for before it runs a denoiser, in files that take no room on a disk."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

# The graphs that need not be computed then, as the tap signs them: CLIP's causal mask and ids.
CLIP_L_GRAPH = "f32:77x77x1x1,i32:77x1x1x1"


def qwen3_graph(tokens: int) -> str:
    """Its mask, ids and positions."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{tokens}x1x1x1,i32:{tokens}x1x1x1"


mistral_graph = qwen3_graph


def clip_l(folder: Path) -> Path:
    """CLIP-L; sd-cli takes it in this size only."""
    return hollow(folder / "clip_l.safetensors", _clip(768, 12))


def clip_g(folder: Path) -> Path:
    """OpenCLIP bigG, as CLIP-L; of zeros too it takes 1.4 GB of memory."""
    shapes = _clip(1280, 32) | {"text_projection.weight": (1280, 1280)}
    return hollow(folder / "clip_g.safetensors", shapes)


def encoder_of(folder: Path, context_dim: int) -> Path:
    """A checkpoint's first, by which sd-cli tells UNets apart: OpenCLIP-H for SD 2's context, else CLIP-L."""
    shapes = _clip(1024, 24) if context_dim == 1024 else _clip(768, 12)
    prefix = "cond_stage_model.transformer."
    return hollow(folder / "encoder.safetensors", {prefix + name: shape for name, shape in shapes.items()})


def _clip(D: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Under the names of transformers."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.token_embedding.weight": (49408, D),
        "embeddings.position_embedding.weight": (77, D),
    }
    for i in range(layers):
        layer = f"encoder.layers.{i}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"):
            shapes |= _linear(layer + name, D, D)
        shapes |= _linear(f"{layer}mlp.fc1", D, 4 * D) | _linear(f"{layer}mlp.fc2", 4 * D, D)
        shapes |= _norm(f"{layer}layer_norm1", D) | _norm(f"{layer}layer_norm2", D)
    shapes |= _norm("final_layer_norm", D)
    return {f"text_model.{name}": shape for name, shape in shapes.items()}


def qwen3(folder: Path, hidden: int, layers: int = 1) -> Path:
    """A Qwen3 of few layers and hardly any MLP; sd-cli takes its heads, 32 over 8 of 128, as they are."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (1, hidden), "norm.weight": (hidden,)}
    heads = {"q_proj": (4096, hidden), "k_proj": (1024, hidden), "v_proj": (1024, hidden), "o_proj": (hidden, 4096)}
    for i in range(layers):
        layer = f"layers.{i}."
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in heads.items()}
        shapes |= {f"{layer}self_attn.{name}.weight": (128,) for name in ("q_norm", "k_norm")}
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}mlp.{name}.weight": (32, hidden) for name in ("gate_proj", "up_proj")}
        shapes |= {f"{layer}mlp.down_proj.weight": (hidden, 32)}
    return hollow(folder / "qwen3.safetensors", {f"model.{name}": shape for name, shape in shapes.items()})


def mistral(folder: Path, hidden: int) -> Path:
    """A Mistral of one layer and hardly any MLP; sd-cli takes its heads, 32 over 8 of 128, as they are."""
    layer = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (1, hidden), "model.norm.weight": (hidden,)}
    heads = {"q_proj": (4096, hidden), "k_proj": (1024, hidden), "v_proj": (1024, hidden), "o_proj": (hidden, 4096)}
    shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in heads.items()}
    shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}mlp.{name}.weight": (32, hidden) for name in ("gate_proj", "up_proj")}
    return hollow(folder / "mistral.safetensors", shapes | {f"{layer}mlp.down_proj.weight": (hidden, 32)})


def _linear(name: str, k: int, o: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (o, k), f"{name}.bias": (o,)}


def _norm(name: str, n: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}


def hollow(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A safetensors file of float16 zeros that the file system does not store."""
    entries, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        entries[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)
    return path
