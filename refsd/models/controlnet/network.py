"""The ControlNets of SD 1.x, SD 2.x and SDXL."""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.controlnet.union import HEADS, LAYERS, TASKS
from refsd.models.unet.network import LABEL, LDM_NAMES, UNET_RESNET, UNET_TRUNK, read_heads, unet_config
from refsd.models.unet.tensors import SD15, SD21, SDXL, UNetSize, unet_shapes, unet_size
from refsd.networks.dimensions import Shape, Shapes, conv, dim, linear
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, same
from refsd.networks.recipe import alone

_LAYER = f"{LAYERS}.0"
_MARK = 256  # channels of the embedding of each kind's mark
_TRUNK = ("time_embed.", "label_emb.", "input_blocks.", "middle_block.")


class ControlNetSize(NamedTuple):
    """Dimensions of a ControlNet; the defaults are those for SD 1.5.

    unet: the UNet whose encoder and middle block the ControlNet copies
    hint: channels of the convolutions on the hint, two convolutions for each number; one more convolution follows,
          to the UNet's width
    kinds: of control images that ControlNet Union tells apart; 0: another ControlNet
    """

    unet: UNetSize = SD15
    hint: tuple[int, ...] = (16, 32, 96, 256)
    hint_channels: int = 3
    kinds: int = 0


CONTROLNET_SD15 = ControlNetSize()
CONTROLNET_SD21 = ControlNetSize(SD21)
CONTROLNET_SDXL = ControlNetSize(SDXL)
CONTROLNET_UNION = ControlNetSize(SDXL, kinds=6)


def controlnet_shapes(size: ControlNetSize) -> Shapes:
    """Return the shapes of all tensors. Source: lllyasviel/ControlNet, cldm.py: ControlNet."""
    unet, hint = size.unet, size.hint
    trunk = {name: shape for name, shape in unet_shapes(unet).items() if name.startswith(_TRUNK)}
    last = len(unet.widths) - 1
    outs = [unet.channels]
    for level, width in enumerate(unet.widths):
        outs += [width] * (unet.res_blocks + (level != last))
    shapes = {name: shape for name, shape in trunk.items() if not name.startswith("middle_block.")}
    for i, channels in enumerate(outs):
        shapes |= conv(f"zero_convs.{i}.0", channels, channels, 1)
    shapes |= conv("input_hint_block.0", size.hint_channels, hint[0])
    for i, (inputs, outputs) in enumerate(itertools.pairwise(hint)):
        shapes |= conv(f"input_hint_block.{4 * i + 2}", inputs, inputs)
        shapes |= conv(f"input_hint_block.{4 * i + 4}", inputs, outputs)
    shapes |= conv(f"input_hint_block.{4 * len(hint) - 2}", hint[-1], unet.channels)
    shapes |= {name: shape for name, shape in trunk.items() if name.startswith("middle_block.")}
    shapes |= conv("middle_block_out.0", outs[-1], outs[-1], 1)
    return shapes | (_union_shapes(size) if size.kinds else {})


def _union_shapes(size: ControlNetSize) -> Shapes:
    """Return what ControlNet Union has besides. Source: diffusers ControlNetUnionModel."""
    D, A = size.unet.channels, 4 * size.unet.channels
    shapes: Shapes = {TASKS: (size.kinds, D)}
    for name in ("ln_1", "ln_2"):
        shapes |= {f"{_LAYER}.{name}.{leaf}": (D,) for leaf in ("weight", "bias")}
    for name, inputs, outputs in (
        (f"{_LAYER}.attn.in_proj", D, 3 * D),
        (f"{_LAYER}.attn.out_proj", D, D),
        (f"{_LAYER}.mlp.c_fc", D, 4 * D),
        (f"{_LAYER}.mlp.c_proj", 4 * D, D),
        ("spatial_ch_projs", D, D),
        ("control_add_embedding.linear_1", _MARK * size.kinds, A),
        ("control_add_embedding.linear_2", A, A),
    ):
        shapes |= linear(name, inputs, outputs)
    return shapes


def controlnet_size(shapes: Mapping[str, Shape]) -> ControlNetSize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are SD 1.5's."""
    usual = ControlNetSize()
    first = "input_hint_block.0"
    hint = list(usual.hint)
    for i in range(len(hint)):
        into, at = f"input_hint_block.{4 * i}.bias", f"input_hint_block.{4 * i + 2}.weight"
        hint[i] = dim(shapes, into, 0, dim(shapes, at, 1, hint[i]))
    return ControlNetSize(
        unet_size({name: shape for name, shape in shapes.items() if name.startswith(_TRUNK)}),
        tuple(hint),
        dim(shapes, f"{first}.weight", 1, usual.hint_channels),
        dim(shapes, TASKS, 0, 0),
    )


_ENDS = (
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("input_blocks.0.0", "conv_in"),
    ("input_hint_block.0", "controlnet_cond_embedding.conv_in"),
    ("input_hint_block.14", "controlnet_cond_embedding.conv_out"),
    ("middle_block.1", "mid_block.attentions.0"),
    ("middle_block_out.0", "controlnet_mid_block"),
)
_UNION = (
    *((name, name) for name in (TASKS, "spatial_ch_projs", "control_add_embedding")),
    *((f"{_LAYER}.{name}",) * 2 for name in ("attn.out_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2")),
    *((f"{_LAYER}.attn.in_proj.{leaf}", f"{_LAYER}.attn.in_proj_{leaf}") for leaf in ("weight", "bias")),
)


def controlnet_keymap(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """Map the original's names to and from diffusers' ControlNetModel. SDXL's ControlNets have 3 levels."""
    step = res_blocks + 1
    pairs = [*_ENDS, *LABEL, *_UNION]
    pairs += [(f"input_hint_block.{2 * i + 2}", f"controlnet_cond_embedding.blocks.{i}") for i in range(6)]
    pairs += [(f"zero_convs.{i}.0", f"controlnet_down_blocks.{i}") for i in range(levels * step)]
    resnets = [(f"middle_block.{2 * i}", f"mid_block.resnets.{i}") for i in (0, 1)]
    for level in range(levels):
        down = f"down_blocks.{level}"
        for i in range(res_blocks):
            at = f"input_blocks.{1 + level * step + i}"
            resnets.append((f"{at}.0", f"{down}.resnets.{i}"))
            pairs.append((f"{at}.1", f"{down}.attentions.{i}"))
        pairs.append((f"input_blocks.{(level + 1) * step}.0.op", f"{down}.downsamplers.0.conv"))
    for ours, theirs in resnets:
        pairs += [(f"{ours}.{a}", f"{theirs}.{b}") for a, b in UNET_RESNET]
    return Keymap(prefix_rows(pairs))


def _controlnet_config(size) -> dict:
    same = ("act_fn", "attention_head_dim", "block_out_channels", "cross_attention_dim", "down_block_types")
    same += ("downsample_padding", "flip_sin_to_cos", "freq_shift", "in_channels", "layers_per_block")
    same += ("mid_block_scale_factor", "norm_eps", "norm_num_groups", "use_linear_projection")
    same += ("transformer_layers_per_block", "addition_embed_type", "addition_time_embed_dim")
    same += ("projection_class_embeddings_input_dim",)
    base = unet_config(size.unet)
    D = size.unet.channels
    union = {"num_control_type": size.kinds, "num_trans_channel": D, "num_proj_channel": D}
    union |= {"num_trans_head": HEADS, "num_trans_layer": 1, "addition_time_embed_dim": _MARK}
    return {
        "_class_name": "ControlNetUnionModel" if size.kinds else "ControlNetModel",
        **{field: base[field] for field in same if field in base},
        **(union if size.kinds else {}),
        "conditioning_channels": size.hint_channels,
        "conditioning_embedding_out_channels": list(size.hint),
    }


_DIFFUSERS = counted(
    "diffusers",
    controlnet_keymap,
    {"down_blocks.": 4, "down_blocks.0.resnets.": 2},
    lambda size: (len(size.unet.widths), size.unet.res_blocks),
)

CONTROLNET = Network(
    "controlnet",
    "ControlNet",
    "controlnet",
    controlnet_size,
    controlnet_shapes,
    places=(
        Location(same("ldm"), ("control_model.",), LDM_NAMES),
        Location(same("ldm"), ("",), ("input_hint_block.",)),
        Location(_DIFFUSERS, ("",), ("controlnet_cond_embedding.",)),
    ),
    folder=Folder("", DIFFUSERS_FILE, _DIFFUSERS, _controlnet_config),
    computed={
        **UNET_TRUNK,
        "mid_block_type": ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D"),
        "controlnet_conditioning_channel_order": ("rgb",),
        "global_pool_conditions": (False,),
        "num_trans_head": (HEADS,),
        "num_trans_layer": (1,),
    },
    config=lambda path, shapes, given: read_heads(path, controlnet_size(shapes).unet, given),
    before=("unet",),
    recipes={
        "controlnet": alone(
            "controlnet",
            CONTROLNET_SD15,
            ControlNetSize(UNetSize(32, (32, 64, 128, 128), context_dim=128)),
            "controlnet",
        ),
        "controlnet-union": alone(
            "controlnet",
            CONTROLNET_UNION,
            ControlNetSize(UNetSize(32, (32, 64, 128), context_dim=128), kinds=6),
            "controlnet",
        ),
    },
)
NETWORKS = (CONTROLNET,)
