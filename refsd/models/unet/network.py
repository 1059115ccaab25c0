"""The UNets of Stable Diffusion 1.x, 2.x and SDXL: layouts of files, and config.json."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from refsd.models.unet.tensors import SD15, UNetSize, attending, unet_depths, unet_shapes, unet_size
from refsd.models.unet.tiny_names import is_tiny, tiny_unet_of_names
from refsd.networks.config import num_groups, shown_value
from refsd.networks.dimensions import count
from refsd.networks.keymap import Keymap, prefix_rows, same_names
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, Folder, Layout, Location, Network
from refsd.numerics.errors import BadInput

LABEL = (
    ("label_emb.0.0", "add_embedding.linear_1"),
    ("label_emb.0.2", "add_embedding.linear_2"),
)
UNET_ENDS = (
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("input_blocks.0.0", "conv_in"),
    ("out.0", "conv_norm_out"),
    ("out.2", "conv_out"),
    ("middle_block.1", "mid_block.attentions.0"),
)
UNET_RESNET = (
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
    ("skip_connection", "conv_shortcut"),
)


def unet_keymap(levels: int = 4, res_blocks: int = 2, attention: Iterable[int] = (0, 1, 2)) -> Keymap:
    """Map the original's names to and from diffusers' UNet2DConditionModel. attention: levels with transformers"""
    attention = set(attention)
    step = res_blocks + 1
    rows = prefix_rows(UNET_ENDS + LABEL)
    for i in (0, 1):
        rows += prefix_rows(UNET_RESNET, f"middle_block.{2 * i}.", f"mid_block.resnets.{i}.")
    for level in range(levels):
        down, up = f"down_blocks.{level}", f"up_blocks.{level}"
        for i in range(res_blocks):
            at = f"input_blocks.{1 + level * step + i}"
            rows += prefix_rows(UNET_RESNET, f"{at}.0.", f"{down}.resnets.{i}.")
            rows += prefix_rows([(f"{at}.1", f"{down}.attentions.{i}")])
        rows += prefix_rows([(f"input_blocks.{(level + 1) * step}.0.op", f"{down}.downsamplers.0.conv")])
        for i in range(step):
            at = f"output_blocks.{level * step + i}"
            rows += prefix_rows(UNET_RESNET, f"{at}.0.", f"{up}.resnets.{i}.")
            rows += prefix_rows([(f"{at}.1", f"{up}.attentions.{i}")])
        place = 1 + (levels - 1 - level in attention)
        rows += prefix_rows(
            [(f"output_blocks.{level * step + res_blocks}.{place}.conv", f"{up}.upsamplers.0.conv")]
        )
    return Keymap(rows)


def _ldm_names(names: Collection[str]) -> Keymap:
    return tiny_unet_of_names(names) if is_tiny(names) else same_names(names)


def _of_names(names: Collection[str]) -> Keymap:
    places = {tuple(name.split(".", 3)[:3]) for name in names}
    levels = count(names, "down_blocks.", 4)
    attention = [n for n in range(levels) if ("down_blocks", str(n), "attentions") in places]
    return unet_keymap(levels, count(names, "down_blocks.0.resnets.", 2), attention)


def _of_size(size) -> Keymap:
    attends = range(len(size.widths)) if size.down else size.attention
    levels = [level for level in attends if not size.down or any(size.down[level])]
    return unet_keymap(len(size.widths), size.res_blocks, levels)


def unet_config(size: UNetSize) -> dict:
    """Return diffusers' config.json of a UNet. All transformers of a level must have the same depth."""
    levels = range(len(size.widths))
    depths = [max(level) for level in unet_depths(size)[0]]
    down = [f"{'CrossAttn' if depths[level] else ''}DownBlock2D" for level in levels]
    up = [f"{'CrossAttn' if depths[level] else ''}UpBlock2D" for level in reversed(levels)]
    more: dict[str, Any] = {}
    if size.linear:
        more |= {"attention_head_dim": [max(1, wide // 64) for wide in size.widths], "use_linear_projection": True}
    if size.linear or max(depths) > 1:
        more["transformer_layers_per_block"] = [depth or 1 for depth in depths]
    if not size.middle:
        more["mid_block_type"] = "UNetMidBlock2D" if size.middle == 0 else None
    if size.label:
        more |= {"addition_embed_type": "text_time", "addition_time_embed_dim": 256}
        more["projection_class_embeddings_input_dim"] = size.label
    crossing = {"only_cross_attention": [level in size.cross_only for level in levels]} if size.cross_only else {}
    return (
        {
            "_class_name": "UNet2DConditionModel",
            "act_fn": "silu",
            "attention_head_dim": 8,
            "block_out_channels": list(size.widths),
            "center_input_sample": False,
            "cross_attention_dim": size.context_dim,
            "down_block_types": down,
            "downsample_padding": 1,
            "flip_sin_to_cos": True,
            "freq_shift": 0,
            "in_channels": size.in_channels,
            "layers_per_block": size.res_blocks,
            "mid_block_scale_factor": 1,
            "norm_eps": 1e-05,
            "norm_num_groups": 32,
            "out_channels": size.out_channels,
            "sample_size": 64,
            "up_block_types": up,
        }
        | more
        | crossing
    )


UNET_TRUNK = {
    "act_fn": ("silu", "swish"),
    "flip_sin_to_cos": (True,),
    "freq_shift": (0,),
    "norm_eps": (1e-5,),
    "class_embed_type": (None,),
    "addition_embed_type": (None, "text_time"),
    "encoder_hid_dim_type": (None,),
    "resnet_time_scale_shift": ("default",),
    "mid_block_scale_factor": (1,),
    "downsample_padding": (1,),
}


def _check_label(path: Path, given: dict[str, Any], size: UNetSize) -> None:
    """Raise BadInput unless the channels of each of SDXL's sizes leave some of label_emb's to the pooled text."""
    channels = given.get("addition_time_embed_dim")
    if channels is None or not size.label:
        return
    if type(channels) is not int or channels < 1 or size.label <= 5 * channels:
        raise BadInput(
            f"{path}: addition_time_embed_dim is {shown_value(channels)}; label_emb takes {size.label} channels, "
            "those of five or six sizes and of the pooled text"
        )


def read_heads(path: Path, size: UNetSize, given: dict[str, Any]) -> dict[str, Any]:
    if given:
        _check_crossing(path, given, size)
        _check_label(path, given, size)
    return _num_heads(path, size, given) | num_groups(path, given, size.channels, *size.widths)


def _num_heads(path: Path, size: UNetSize, given: dict[str, Any]) -> dict[str, Any]:
    """Return num_heads from the config, one number or a list per level; {} if it is the default for this UNet."""
    # diffusers names the number of heads attention_head_dim; num_attention_heads takes precedence.
    field = "attention_head_dim" if given.get("num_attention_heads") is None else "num_attention_heads"
    heads = given.get(field, 8)
    each = heads if isinstance(heads, list) else [heads] * len(size.widths)
    attends = {level: size.widths[level] for level in attending(size)}
    whole = all(type(n) is int and n > 0 for n in each) and len(each) == len(size.widths)
    if given and not (whole and all(width % each[level] == 0 for level, width in attends.items())):
        channels = ", ".join(map(str, attends.values())) or "no"
        raise BadInput(
            f"{path}: {field} is {shown_value(heads)}; expected whole numbers of heads, one or a list of one for "
            f"each of {len(size.widths)} levels, that divide the channels of the levels with attention: {channels}"
        )
    if size.linear:
        of_64 = all(each[level] * 64 == width for level, width in attends.items())
        return {"num_heads": each} if given and not of_64 else {}
    if all(n == each[0] for n in each):
        return {"num_heads": each[0]} if given or all(width % 8 == 0 for width in attends.values()) else {}
    return {"num_heads": each}


def _check_crossing(path: Path, given: dict[str, Any], size: UNetSize) -> None:
    """Raise BadInput if only_cross_attention in the config disagrees with the shapes of attn1."""
    entry = given.get("only_cross_attention", False)
    levels = range(len(size.widths))
    crossing = entry if isinstance(entry, list) else [entry] * len(levels)
    by_shape = [level in size.cross_only for level in levels]
    if crossing != by_shape:
        raise BadInput(f"{path}: only_cross_attention is {shown_value(entry)}; the shapes of attn1 say {by_shape}")


LDM_NAMES = ("input_blocks.", "middle_block.", "output_blocks.")
_DIFFUSERS_NAMES = ("down_blocks.", "mid_block.", "up_blocks.")
_LDM = Layout("ldm", _ldm_names, lambda size: same_names(()))
DIFFUSERS = Layout("diffusers", _of_names, _of_size)

UNET = Network(
    "unet",
    "UNet",
    "denoiser",
    unet_size,
    unet_shapes,
    places=(
        Location(_LDM, DENOISER[:2], LDM_NAMES),
        Location(DIFFUSERS, ("model.diffusion_model.", "unet."), _DIFFUSERS_NAMES),
        Location(_LDM, ("",), LDM_NAMES),
        Location(DIFFUSERS, ("",), _DIFFUSERS_NAMES),
    ),
    folder=Folder("unet", DIFFUSERS_FILE, DIFFUSERS, unet_config),
    computed={
        **UNET_TRUNK,
        "center_input_sample": (False,),
        "time_embedding_type": ("positional",),
        "time_embedding_act_fn": (None,),
        "timestep_post_act": (None,),
        "time_cond_proj_dim": (None,),
        "resnet_skip_time_act": (False,),
        "resnet_out_scale_factor": (1,),
        "mid_block_type": ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D", None),
        "dual_cross_attention": (False,),
        "cross_attention_norm": (None,),
        "attention_type": ("default",),
        "conv_in_kernel": (3,),
        "conv_out_kernel": (3,),
    },
    config=lambda path, shapes, given: read_heads(path, unet_size(shapes), given),
    adapters=DENOISER_NAMINGS,
    usual=SD15,
)
NETWORKS = (UNET,)
