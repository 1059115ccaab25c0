"""ControlNet for Stable Diffusion 1.x, 2.x and SDXL: a copy of the UNet's encoder with a control image as input.

Zhang et al. 2023, section 3.2; key names as in lllyasviel/ControlNet, cldm.py, SDXL's as its UNet has them. SDXL's
ControlNet Union reads several kinds of control images (union.py).
"""

from refsd.models.controlnet.union import LAYERS, TASKS, fused_hint, type_embed
from refsd.models.ip_adapter import Prompt
from refsd.models.unet import conv_in, goes_down, heads_at, label_embed, stage, time_embed
from refsd.module import Module, block
from refsd.numerics.errors import BadInput


@block
def controlnet(
    m: Module,
    x,
    hint,
    timesteps,
    context,
    num_heads=8,
    num_groups=32,
    strength=1.0,
    y=None,
    head_dim=64,
    control_type=0,
):
    """Compute the residuals for the UNet's skips and middle block; see `unet`, argument `control`.

    x:          [N, C, H, W], the UNet's own input
    hint:       [N, 3, 8H, 8W], 0..1: edges, depth, a pose, ...
    timesteps:  [N], 0..1000
    context:    [N, J, E]
    num_heads:  heads of every attention whose proj_in is a convolution (SD 1); a list: heads per level
    strength:   factor of all outputs
    y:          [N, A], input of SDXL's label_emb, from `size_condition`; else None
    control_type: number of the hint's kind, for ControlNet Union (union.KINDS)
    head_dim:   channels per head if proj_in is linear (SD 2, SDXL); a list of num_heads takes precedence
    -> control: one residual per input block, of its output's shape, then the middle block's
    """
    if ("label_emb" in m) != (y is not None):
        given = "missing" if y is None else "given"
        raise BadInput(f"y is {given}: a ControlNet takes it if it has label_emb, as SDXL's")
    emb = time_embed(m, timesteps)
    if y is not None:
        emb = m.add(emb, label_embed(m["label_emb.0"], y))
    if LAYERS in m:
        emb = m.add(emb, type_embed(m["control_add_embedding"], control_type, m.shape(TASKS)[0], len(x)))
    h, hint = conv_in(m["input_blocks.0"], x), hint_block(m["input_hint_block"], hint)
    h = m.add(h, fused_hint(m, hint, h, control_type) if LAYERS in m else hint)
    prompt = Prompt(context)
    outs = [zero_conv(m["zero_convs.0"], h)]
    level = 0
    for i in range(1, m.count("input_blocks")):
        part = m["input_blocks"][i]
        h = stage(part, h, emb, prompt, *heads_at(level, num_heads, head_dim), num_groups)
        outs.append(zero_conv(m["zero_convs"][i], h))
        level += goes_down(part)
    h = stage(m["middle_block"], h, emb, prompt, *heads_at(level, num_heads, head_dim), num_groups)
    outs.append(zero_conv(m["middle_block_out"], h))
    return tuple(m.multiply(out, strength) for out in outs)


@block
def hint_block(m: Module, hint):
    """Embed the hint. [N, 3, 8H, 8W] -> [N, D, H, W]; every other convolution from the third on halves the size"""
    h = m.conv2d("0", hint, padding=1)
    i = 2
    while i in m:
        h = m.conv2d(f"{i}", m.silu(h), stride=1 if i % 4 else 2, padding=1)
        i += 2
    return h


@block
def zero_conv(m: Module, h):
    """Apply a 1x1 convolution, which training initialised with zeros. [N, D, H, W] -> the same"""
    return m.conv2d("0", h)
