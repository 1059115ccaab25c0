"""Write sparse files with the all-zero models that sd-cli must load besides the network under test."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

from refsd.models.clip.network import CLIP_G, CLIP_H, CLIP_L, clip_shapes
from refsd.models.mistral.network import MistralSize, mistral_shapes
from refsd.models.mmdit.network import SD3_MEDIUM, mmdit_shapes
from refsd.models.qwen3.network import Qwen3Size, qwen3_shapes
from refsd.models.qwen_vl.network import Qwen25Size, qwen2_5_vl_shapes
from refsd.models.vae_wan.network import WanVAESize, wan_vae_shapes
from refsd.models.zimage.network import ZIMAGE, zimage_shapes

# The tap's signature of CLIP-L's graph (causal mask and ids), so that the graph can be skipped.
CLIP_L_GRAPH = "f32:77x77x1x1,i32:77x1x1x1"
_MLP, _VOCAB = 32, 1  # of language models: narrow, a single token


def qwen3_graph(tokens: int) -> str:
    """Return the tap's signature of the graph of Qwen3 or Mistral: mask, ids and positions."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{tokens}x1x1x1,i32:{tokens}x1x1x1"


def clip_l(folder: Path) -> Path:
    """Write CLIP-L of zeros, at full size: sd-cli loads no other."""
    return hollow(folder / "clip_l.safetensors", clip_shapes(CLIP_L))


def clip_g(folder: Path) -> Path:
    """Write OpenCLIP bigG of zeros, at full size; sd-cli needs 1.4 GB of memory for it."""
    return hollow(folder / "clip_g.safetensors", clip_shapes(CLIP_G))


def encoder_of(folder: Path, context_dim: int) -> Path:
    """Write the checkpoint's text encoder, from which sd-cli infers the kind of UNet.

    It is OpenCLIP-H for SD 2's context_dim of 1024, otherwise CLIP-L.
    """
    shapes = clip_shapes(CLIP_H._replace(projection=0) if context_dim == 1024 else CLIP_L)
    prefix = "cond_stage_model.transformer."
    return hollow(folder / "encoder.safetensors", {prefix + name: shape for name, shape in shapes.items()})


def qwen3(folder: Path, hidden: int, layers: int = 1) -> Path:
    """Write Qwen3 of zeros: few layers, a narrow MLP, and sd-cli's fixed 32 heads and 8 kv heads of width 128."""
    return hollow(folder / "qwen3.safetensors", qwen3_shapes(Qwen3Size(hidden, layers, mlp=_MLP, vocab=_VOCAB)))


def mistral(folder: Path, hidden: int) -> Path:
    """Write Mistral of zeros in the same way; Mistral has no q_norm and k_norm."""
    return hollow(folder / "mistral.safetensors", mistral_shapes(MistralSize(hidden, 1, mlp=_MLP, vocab=_VOCAB)))


def qwen2_5_vl(folder: Path) -> Path:
    """Write Qwen2.5-VL of zeros in the same way: 28 heads, 4 kv heads, biases, and the 7B's width."""
    return hollow(
        folder / "qwen2_5_vl.safetensors", qwen2_5_vl_shapes(Qwen25Size(layers=1, mlp=_MLP, vocab=_VOCAB))
    )


def qwen2_5_vl_graph(tokens: int) -> str:
    """Return the tap's signature of Qwen2.5-VL's graph: each token has four positions."""
    return f"f32:{tokens}x{tokens}x1x1,i32:{4 * tokens}x1x1x1,i32:{tokens}x1x1x1"


def wan_vae(folder: Path) -> Path:
    """Write Wan's autoencoder of zeros, at full size: sd-cli loads no other for Qwen-Image."""
    return hollow(folder / "wan_vae.safetensors", wan_vae_shapes(WanVAESize()))


def zimage(folder: Path) -> Path:
    """Write Z-Image of zeros at full size, the only one that sd-cli loads; TQ2_0 keeps it to 1.6 GB of memory."""
    return _hollow_blocks(folder / "zimage.gguf", zimage_shapes(ZIMAGE))


def mmdit(folder: Path) -> Path:
    """Write SD 3 medium of zeros, the smallest SD 3 that sd-cli loads; TQ2_0 keeps it to 0.5 GB of memory."""
    return _hollow_blocks(folder / "sd3.gguf", mmdit_shapes(SD3_MEDIUM))


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
    """Write a sparse GGUF file of zeros: matrices in TQ2_0 (66 bytes a block of 256), other tensors in f32.

    On a CPU with AVX2 alone ggml multiplies it several times as fast as IQ1_S, which is smaller.
    """
    f32, tq2_0, aligned = 0, 35, 32
    header, at = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), 0), 0
    for name, shape in shapes.items():
        blocks = len(shape) > 1 and shape[-1] % 256 == 0
        entry = struct.pack(f"<Q{len(name)}sI", len(name), name.encode(), len(shape))
        entry += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), tq2_0 if blocks else f32, at)
        header += entry
        size = math.prod(shape) // 256 * 66 if blocks else 4 * math.prod(shape)
        at += -(-size // aligned) * aligned
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // aligned) * aligned + at)
    return path
