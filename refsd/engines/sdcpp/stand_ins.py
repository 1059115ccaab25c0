"""Text encoders of zeros, which sd-cli asks for before it runs a denoiser, in files that take no room on a disk."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

# The graphs that need not be computed then, as the tap signs them: CLIP's causal mask and ids.
CLIP_L_GRAPH = "f32:77x77x1x1,i32:77x1x1x1"


def qwen3_graph(tokens: int) -> str:
    """Its mask, ids and positions; Mistral's too."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{tokens}x1x1x1,i32:{tokens}x1x1x1"


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
    return _language_model(folder / "qwen3.safetensors", hidden, layers, ("q_norm", "k_norm"))


def mistral(folder: Path, hidden: int) -> Path:
    """The same for Mistral, which does not normalise its heads."""
    return _language_model(folder / "mistral.safetensors", hidden, 1, ())


def _language_model(path: Path, hidden: int, layers: int, norms: tuple[str, ...]) -> Path:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (1, hidden), "norm.weight": (hidden,)}
    heads = {"q_proj": (4096, hidden), "k_proj": (1024, hidden), "v_proj": (1024, hidden), "o_proj": (hidden, 4096)}
    for i in range(layers):
        layer = f"layers.{i}."
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in heads.items()}
        shapes |= {f"{layer}self_attn.{name}.weight": (128,) for name in norms}
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}mlp.{name}.weight": (32, hidden) for name in ("gate_proj", "up_proj")}
        shapes |= {f"{layer}mlp.down_proj.weight": (hidden, 32)}
    return hollow(path, {f"model.{name}": shape for name, shape in shapes.items()})


def zimage(folder: Path) -> Path:
    """Z-Image, of which sd-cli takes one size only: in IQ1_S, the smallest of the block types, 1.3 GB of memory."""
    D, F, A, heads = 3840, 10240, 256, 128
    shapes: dict[str, tuple[int, ...]] = {"x_pad_token": (1, D), "cap_pad_token": (1, D)}
    shapes |= _linear("x_embedder", 64, D) | _linear("cap_embedder.1", 2560, D) | {"cap_embedder.0.weight": (2560,)}
    shapes |= _linear("t_embedder.mlp.0", 256, 1024) | _linear("t_embedder.mlp.2", 1024, A)
    shapes |= _linear("final_layer.linear", D, 64) | _linear("final_layer.adaLN_modulation.1", A, D)
    modulated = [f"layers.{i}." for i in range(30)] + [f"noise_refiner.{i}." for i in range(2)]
    for block in [*modulated, "context_refiner.0.", "context_refiner.1."]:
        shapes |= {f"{block}attention.qkv.weight": (3 * D, D), f"{block}attention.out.weight": (D, D)}
        shapes |= {f"{block}feed_forward.w{i}.weight": (D, F) if i == 2 else (F, D) for i in (1, 2, 3)}
        shapes |= {f"{block}attention.{name}_norm.weight": (heads,) for name in "qk"}
        norms = ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2")
        shapes |= {f"{block}{name}.weight": (D,) for name in norms}
        shapes |= _linear(f"{block}adaLN_modulation.0", A, 4 * D) if block in modulated else {}
    return _hollow_blocks(folder / "zimage.gguf", shapes)


def mmdit(folder: Path) -> Path:
    """SD 3 medium, the smallest that sd-cli takes: in IQ1_S, 0.5 GB of memory."""
    D, C, P, blocks = 1536, 4096, 2048, 24
    shapes: dict[str, tuple[int, ...]] = {"pos_embed": (1, 192 * 192, D), "x_embedder.proj.weight": (D, 16, 2, 2)}
    shapes |= {"x_embedder.proj.bias": (D,)} | _linear("context_embedder", C, D)
    for name, k in {"t": 256, "y": P}.items():
        shapes |= _linear(f"{name}_embedder.mlp.0", k, D) | _linear(f"{name}_embedder.mlp.2", D, D)
    for i in range(blocks):
        for side in ("context", "x"):
            block, last = f"joint_blocks.{i}.{side}_block.", side == "context" and i == blocks - 1
            shapes |= _linear(f"{block}attn.qkv", D, 3 * D)
            shapes |= _linear(f"{block}adaLN_modulation.1", D, (2 if last else 6) * D)
            if not last:
                shapes |= _linear(f"{block}attn.proj", D, D)
                shapes |= _linear(f"{block}mlp.fc1", D, 4 * D) | _linear(f"{block}mlp.fc2", 4 * D, D)
    shapes |= _linear("final_layer.linear", D, 64) | _linear("final_layer.adaLN_modulation.1", D, 2 * D)
    return _hollow_blocks(folder / "sd3.gguf", shapes)


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


def _hollow_blocks(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A GGUF file of zeros that the file system does not store: matrices in IQ1_S (50 bytes each 256), else f32."""
    f32, iq1_s, aligned = 0, 19, 32
    header, at = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), 0), 0
    for name, shape in shapes.items():
        blocks = len(shape) > 1 and shape[-1] % 256 == 0
        entry = struct.pack(f"<Q{len(name)}sI", len(name), name.encode(), len(shape))
        entry += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), iq1_s if blocks else f32, at)
        header += entry
        size = math.prod(shape) // 256 * 50 if blocks else 4 * math.prod(shape)
        at += -(-size // aligned) * aligned
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // aligned) * aligned + at)
    return path
