"""Layers of Wan's autoencoders: shapes of their tensors, and their names in diffusers."""

from refsd.networks.dimensions import Shapes, conv
from refsd.networks.keymap import Row, prefix_rows

_ENDS = (
    ("conv1", "quant_conv"),
    ("conv2", "post_quant_conv"),
    *(
        (f"{half}.{ours}", f"{half}.{theirs}")
        for half in ("encoder", "decoder")
        for ours, theirs in (("conv1", "conv_in"), ("head.0", "norm_out"), ("head.2", "conv_out"))
    ),
)
RES_NAMES = (
    ("residual.0", "norm1"),
    ("residual.2", "conv1"),
    ("residual.3", "norm2"),
    ("residual.6", "conv2"),
    ("shortcut", "conv_shortcut"),
)
SAMPLING = (("resample", "resample"), ("time_conv", "time_conv"))


def conv3d(name: str, inputs: int, outputs: int, taps: tuple[int, int, int] = (3, 3, 3)) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, *taps), f"{name}.bias": (outputs,)}


def res_block(at: str, inputs: int, outputs: int) -> Shapes:
    shapes: Shapes = {f"{at}.residual.0.gamma": (inputs, 1, 1, 1)}
    shapes |= conv3d(f"{at}.residual.2", inputs, outputs)
    shapes |= {f"{at}.residual.3.gamma": (outputs, 1, 1, 1)}
    shapes |= conv3d(f"{at}.residual.6", outputs, outputs)
    return shapes | conv3d(f"{at}.shortcut", inputs, outputs, (1, 1, 1)) if inputs != outputs else shapes


def middle(at: str, d: int) -> Shapes:
    attention: Shapes = {f"{at}.1.norm.gamma": (d, 1, 1)}
    attention |= conv(f"{at}.1.to_qkv", d, 3 * d, 1) | conv(f"{at}.1.proj", d, d, 1)
    return res_block(f"{at}.0", d, d) | attention | res_block(f"{at}.2", d, d)


def head(at: str, inputs: int, outputs: int) -> Shapes:
    return {f"{at}.0.gamma": (inputs, 1, 1, 1)} | conv3d(f"{at}.2", inputs, outputs)


def shared_rows() -> list[Row]:
    """Return the rows of the first and last convolutions and of the middle blocks."""
    rows = prefix_rows(_ENDS)
    for half in ("encoder", "decoder"):
        ours, theirs = f"{half}.middle", f"{half}.mid_block"
        for i in (0, 1):
            rows += prefix_rows(RES_NAMES, f"{ours}.{2 * i}.", f"{theirs}.resnets.{i}.")
        rows += prefix_rows([(f"{ours}.1", f"{theirs}.attentions.0")])
    return rows
