"""IP-Adapters of Stable Diffusion 1.x and SDXL: the plain one, plus with its Resampler, and full-face.

A file numbers the attentions of a UNet as diffusers lists them: encoder, decoder, then the middle block, in each
block attn1 and attn2. Only attn2, which has the odd numbers, has keys and values for the image.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from refsd.models.unet.tensors import SD15, SDXL, TRANSFORMER, UNetSize, unet_shapes
from refsd.networks.dimensions import Shape, Shapes, bare, count, dim, has, linear, norm
from refsd.networks.network import Location, Network, same
from refsd.networks.recipe import alone

_PROJ = "image_proj"
_CROSS = "attn2.to_k.weight"
# Three digits at most: SDXL's last number is 139, and no name in a file can make a huge table.
_NUMBERED = re.compile(r"ip_adapter\.([0-9]{1,3})\.to_[kv]_ip\.")
_PARTS = ("input_blocks", "output_blocks", "middle_block")


def cross_attentions(names: Iterable[str]) -> list[str]:
    """Return the cross-attentions of a UNet with these tensors, in the order of an IP-Adapter's file."""
    found = {}
    for name in names:
        match = TRANSFORMER.match(name)
        if match is not None and name.endswith(_CROSS):
            part, _, number = match[1].partition(".")
            place = _PARTS.index(part), int(number or 0), int(match[2])
            found[place] = name.removesuffix(".to_k.weight")
    return [found[place] for place in sorted(found)]


def key_and_value(i: int) -> tuple[str, str]:
    """Return an IP-Adapter's tensors for the cross-attention of index i of `cross_attentions`."""
    at = f"ip_adapter.{2 * i + 1}"
    return f"{at}.to_k_ip.weight", f"{at}.to_v_ip.weight"


def crossing_of(unet: UNetSize) -> tuple[int, ...]:
    """Return the channels of the cross-attentions of a UNet, in that order."""
    shapes = unet_shapes(unet)
    return tuple(shapes[f"{at}.to_k.weight"][0] for at in cross_attentions(shapes))


class IPAdapterSize(NamedTuple):
    """Dimensions of an IP-Adapter; the defaults are those of ip-adapter_sd15.

    seen:     channels of what it reads of CLIP's vision tower
    tokens:   that it makes of a picture; 0: one of each hidden state (full-face)
    width:    channels of the Resampler; 0: there is none
    layers:   of the Resampler
    keys:     rows of the Resampler's to_q
    mlp:      hidden channels of the Resampler's MLP
    crossing: channels of the UNet's cross-attentions, in the order of the file
    """

    seen: int = 1024
    context_dim: int = 768
    tokens: int = 4
    width: int = 0
    layers: int = 0
    keys: int = 0
    mlp: int = 0
    crossing: tuple[int, ...] = crossing_of(SD15)


def reads_embedding(size: IPAdapterSize) -> bool:
    """True if it reads the tower's embedding; False: its hidden states (plus, full-face)."""
    return size.tokens > 0 and not size.width


IP_ADAPTER_SD15 = IPAdapterSize()
IP_ADAPTER_PLUS_SD15 = IPAdapterSize(1280, tokens=16, width=768, layers=4, keys=768, mlp=3072)
IP_ADAPTER_FULL_FACE_SD15 = IPAdapterSize(1280, tokens=0)
IP_ADAPTER_SDXL = IPAdapterSize(1280, 2048, crossing=crossing_of(SDXL))
IP_ADAPTER_PLUS_SDXL = IP_ADAPTER_SDXL._replace(tokens=16, width=1280, layers=4, keys=1280, mlp=5120)


def ip_adapter_shapes(size: IPAdapterSize) -> Shapes:
    """Return the shapes of all tensors. Source: tencent-ailab/IP-Adapter, ip_adapter.py, resampler.py."""
    shapes = _resampler(size) if size.width else _projection(size)
    for i, width in enumerate(size.crossing):
        shapes |= dict.fromkeys(key_and_value(i), (width, size.context_dim))
    return shapes


def _projection(size: IPAdapterSize) -> Shapes:
    seen, E = size.seen, size.context_dim
    if not size.tokens:
        shapes = linear(f"{_PROJ}.proj.0", seen, seen) | linear(f"{_PROJ}.proj.2", seen, E)
        return shapes | norm(f"{_PROJ}.proj.3", E)
    return linear(f"{_PROJ}.proj", seen, size.tokens * E) | norm(f"{_PROJ}.norm", E)


def _resampler(size: IPAdapterSize) -> Shapes:
    D, E = size.width, size.context_dim
    shapes: Shapes = {f"{_PROJ}.latents": (1, size.tokens, D)}
    shapes |= linear(f"{_PROJ}.proj_in", size.seen, D) | linear(f"{_PROJ}.proj_out", D, E)
    shapes |= norm(f"{_PROJ}.norm_out", E)
    for i in range(size.layers):
        attention, mlp = f"{_PROJ}.layers.{i}.0", f"{_PROJ}.layers.{i}.1"
        shapes |= norm(f"{attention}.norm1", D) | norm(f"{attention}.norm2", D)
        shapes |= bare(f"{attention}.to_q", D, size.keys)
        shapes |= bare(f"{attention}.to_kv", D, 2 * size.keys)
        shapes |= bare(f"{attention}.to_out", size.keys, D)
        shapes |= norm(f"{mlp}.0", D)
        shapes |= bare(f"{mlp}.1", D, size.mlp) | bare(f"{mlp}.3", size.mlp, D)
    return shapes


def ip_adapter_size(shapes: Mapping[str, Shape]) -> IPAdapterSize:
    """Infer the size from shapes. Dimensions of missing tensors are those for SD 1.5."""
    if has(shapes, tuple(f"{_PROJ}.{part}" for part in ("latents", "proj_in.", "proj_out.", "layers."))):
        size = _resampler_size(shapes)
    elif has(shapes, tuple(f"{_PROJ}.proj.{i}." for i in (0, 2, 3))):
        usual = IP_ADAPTER_FULL_FACE_SD15
        size = usual._replace(
            seen=dim(shapes, f"{_PROJ}.proj.0.weight", 1, dim(shapes, f"{_PROJ}.proj.2.weight", 1, usual.seen)),
            context_dim=dim(shapes, f"{_PROJ}.proj.3.weight", 0, usual.context_dim),
        )
    else:
        usual = IP_ADAPTER_SD15
        E = dim(shapes, f"{_PROJ}.norm.weight", 0, dim(shapes, f"{_PROJ}.norm.bias", 0, usual.context_dim))
        rows = dim(shapes, f"{_PROJ}.proj.weight", 0, dim(shapes, f"{_PROJ}.proj.bias", 0, usual.tokens * E))
        size = usual._replace(
            seen=dim(shapes, f"{_PROJ}.proj.weight", 1, usual.seen), context_dim=E, tokens=max(1, rows // E)
        )
    return size._replace(crossing=tuple(_crossing(shapes, size.crossing)))


def _resampler_size(shapes: Mapping[str, Shape]) -> IPAdapterSize:
    usual = IP_ADAPTER_PLUS_SD15
    first = f"{_PROJ}.layers.0"
    latents = shapes.get(f"{_PROJ}.latents", ())
    return usual._replace(
        seen=dim(shapes, f"{_PROJ}.proj_in.weight", 1, usual.seen),
        context_dim=dim(shapes, f"{_PROJ}.norm_out.weight", 0, usual.context_dim),
        tokens=latents[-2] if len(latents) > 1 and latents[-2] > 0 else usual.tokens,  # GGUF drops the batch
        width=dim(shapes, f"{_PROJ}.proj_in.bias", 0, usual.width),
        layers=count(shapes, f"{_PROJ}.layers.", usual.layers),
        keys=dim(shapes, f"{first}.0.to_q.weight", 0, usual.keys),
        mlp=dim(shapes, f"{first}.1.1.weight", 0, usual.mlp),
    )


def _crossing(shapes: Mapping[str, Shape], usual: tuple[int, ...]) -> Iterator[int]:
    numbers = [int(match[1]) for match in map(_NUMBERED.match, shapes) if match]
    n = (max(numbers) + 1) // 2 if numbers else len(usual)
    for i in range(n):
        key, value = key_and_value(i)
        yield dim(shapes, key, 0, dim(shapes, value, 0, usual[min(i, len(usual) - 1)]))


_TINY_UNET = UNetSize(32, (32, 64, 128, 128), context_dim=128)
TINY_IP_ADAPTER = IPAdapterSize(64, 128, crossing=crossing_of(_TINY_UNET))
_TINY_PLUS = TINY_IP_ADAPTER._replace(tokens=5, width=64, layers=4, keys=128, mlp=256)

IP_ADAPTER = Network(
    "ip-adapter",
    "IP-Adapter",
    "image encoder",
    ip_adapter_size,
    ip_adapter_shapes,
    places=(Location(same("original"), ("",), (f"{_PROJ}.", "ip_adapter.")),),
    usual=IP_ADAPTER_SD15,
    recipes={
        "ip-adapter": alone("ip-adapter", IP_ADAPTER_SD15, TINY_IP_ADAPTER, "ip-adapter"),
        "ip-adapter-plus": alone("ip-adapter", IP_ADAPTER_PLUS_SD15, _TINY_PLUS, "ip-adapter"),
        "ip-adapter-full-face": alone(
            "ip-adapter", IP_ADAPTER_FULL_FACE_SD15, TINY_IP_ADAPTER._replace(tokens=0), "ip-adapter"
        ),
        "ip-adapter-sdxl": alone("ip-adapter", IP_ADAPTER_SDXL, TINY_IP_ADAPTER._replace(seen=96), "ip-adapter"),
        "ip-adapter-plus-sdxl": alone(
            "ip-adapter", IP_ADAPTER_PLUS_SDXL, _TINY_PLUS._replace(tokens=6), "ip-adapter"
        ),
    },
)
NETWORKS = (IP_ADAPTER,)
