"""Write sparse files with the all-zero models that sd-cli must load besides the network under test."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

from refsd.models.vae_wan.network import WanVAESize, wan_vae_shapes

# The tap's signature of CLIP-L's graph (causal mask and ids), so that the graph can be skipped.
CLIP_L_GRAPH = "f32:77x77x1x1,i32:77x1x1x1"


def qwen3_graph(tokens: int) -> str:
    """Return the tap's signature of the graph of Qwen3 or Mistral: mask, ids and positions."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{tokens}x1x1x1,i32:{tokens}x1x1x1"


def clip_l(folder: Path) -> Path:
    """Write CLIP-L of zeros, at full size: sd-cli loads no other."""
    return hollow(folder / "clip_l.safetensors", _clip(768, 12))


def clip_g(folder: Path) -> Path:
    """Write OpenCLIP bigG of zeros, at full size; sd-cli needs 1.4 GB of memory for it."""
    shapes = _clip(1280, 32) | {"text_projection.weight": (1280, 1280)}
    return hollow(folder / "clip_g.safetensors", shapes)


def encoder_of(folder: Path, context_dim: int) -> Path:
    """Write the checkpoint's text encoder, from which sd-cli infers the kind of UNet.

    It is OpenCLIP-H for SD 2's context_dim of 1024, otherwise CLIP-L.
    """
    shapes = _clip(1024, 24) if context_dim == 1024 else _clip(768, 12)
    prefix = "cond_stage_model.transformer."
    return hollow(folder / "encoder.safetensors", {prefix + name: shape for name, shape in shapes.items()})


def _clip(D: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Return CLIP's tensor names, as in transformers, and shapes for width D."""
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
    """Write Qwen3 of zeros: few layers, a narrow MLP, and sd-cli's fixed 32 heads and 8 kv heads of width 128."""
    return _language_model(folder / "qwen3.safetensors", hidden, layers, ("q_norm", "k_norm"))


def mistral(folder: Path, hidden: int) -> Path:
    """Write Mistral of zeros in the same way; Mistral has no q_norm and k_norm."""
    return _language_model(folder / "mistral.safetensors", hidden, 1, ())


def qwen2_5_vl(folder: Path) -> Path:
    """Write Qwen2.5-VL of zeros in the same way: 28 heads, 4 kv heads, biases, and the 7B's width."""
    return _language_model(folder / "qwen2_5_vl.safetensors", 3584, 1, (), 3584, 512, bias=True)


def qwen2_5_vl_graph(tokens: int) -> str:
    """Return the tap's signature of Qwen2.5-VL's graph: each token has four positions."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{4 * tokens}x1x1x1,i32:{tokens}x1x1x1"


def wan_vae(folder: Path) -> Path:
    """Write Wan's autoencoder of zeros, at full size: sd-cli loads no other for Qwen-Image."""
    return hollow(folder / "wan_vae.safetensors", wan_vae_shapes(WanVAESize()))


def _language_model(
    path: Path, hidden: int, layers: int, norms: tuple[str, ...], q: int = 4096, kv: int = 1024, bias: bool = False
) -> Path:
    """q, kv: channels of the queries, and of the keys and values"""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (1, hidden), "norm.weight": (hidden,)}
    heads = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    for i in range(layers):
        layer = f"layers.{i}."
        if bias:
            shapes |= {
                f"{layer}self_attn.{name}.bias": (heads[name][0],) for name in ("q_proj", "k_proj", "v_proj")
            }
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in heads.items()}
        shapes |= {f"{layer}self_attn.{name}.weight": (128,) for name in norms}
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}mlp.{name}.weight": (32, hidden) for name in ("gate_proj", "up_proj")}
        shapes |= {f"{layer}mlp.down_proj.weight": (hidden, 32)}
    return hollow(path, {f"model.{name}": shape for name, shape in shapes.items()})


def zimage(folder: Path) -> Path:
    """Write Z-Image of zeros at full size, the only one that sd-cli loads; IQ1_S keeps it to 1.3 GB of memory."""
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
    """Write SD 3 medium of zeros, the smallest SD 3 that sd-cli loads; IQ1_S keeps it to 0.5 GB of memory."""
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
    """Write a sparse safetensors file of float16 zeros, which takes almost no disk space."""
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
    """Write a sparse GGUF file of zeros: matrices in IQ1_S (50 bytes a block of 256), other tensors in f32."""
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
