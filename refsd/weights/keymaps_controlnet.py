"""Where diffusers keeps the tensors of a ControlNet of SD 1.x, SD 2.x or SDXL."""

from refsd.weights.keymaps import SAME, UNET_RESNET, Keymap, Row
from refsd.weights.keymaps_sdxl import LABEL

ENDS = (
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("input_blocks.0.0", "conv_in"),
    ("input_hint_block.0", "controlnet_cond_embedding.conv_in"),
    ("input_hint_block.14", "controlnet_cond_embedding.conv_out"),
    ("middle_block.1", "mid_block.attentions.0"),
    ("middle_block_out.0", "controlnet_mid_block"),
)


def controlnet(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """The original's names <-> diffusers' ControlNetModel. SDXL's have 3 levels."""
    step = res_blocks + 1
    pairs = [*ENDS, *LABEL]
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
    return Keymap(Row(ours, (theirs,), SAME) for ours, theirs in pairs)
