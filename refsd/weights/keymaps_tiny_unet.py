"""Where single files of tiny SD and SDXS keep their UNet's tensors: under numbers with gaps.

Their levels have one res block, of which ours counts one; the script that made the files from diffusers' folders
counts the usual two, so that three numbers are a level's: 1, 3, 4, 6, 7 on the way in, and 0, 1, 3, 4, 6, 7 on the
way out, where the convolution after upsampling keeps a number of its own, 2 and 5. It knows no transformers on the
first level out, and leaves them diffusers' names.
Source: diffusers, scripts/convert_diffusers_to_original_stable_diffusion.py; stable-diffusion.cpp,
model/diffusion/unet.hpp (tiny_unet) and docs/distilled_sd.md.
"""

from collections.abc import Collection, Iterable

from refsd.weights.keymaps import SAME, Keymap, Row
from refsd.weights.sizes import count

STEP = 3  # their numbers a level
SAME_ENDS = ("time_embed", "label_emb", "input_blocks.0", "middle_block", "out")


def is_tiny(names: Collection[str]) -> bool:
    """Whether the numbers have the gap that one res block a level leaves."""
    places = {name.split(".")[1] for name in names if name.startswith("input_blocks.")}
    return "2" not in places and {"1", "3", "4"} <= places


def of_names(names: Collection[str]) -> Keymap:
    levels = count(names, "input_blocks.", 8) // STEP + 1
    at = [f"input_blocks.{STEP * level + 1}.1." for level in range(levels)]
    return tiny_unet(levels, [level for level, start in enumerate(at) if any(n.startswith(start) for n in names)])


def tiny_unet(levels: int = 3, attention: Iterable[int] = (0, 1, 2)) -> Keymap:
    """Numbers without gaps <-> with. attention: the levels that have transformers"""
    attention = set(attention)
    pairs = [(name, name) for name in SAME_ENDS]
    for level in range(levels):
        pairs.append((f"input_blocks.{2 * level + 1}", f"input_blocks.{STEP * level + 1}"))
        pairs.append((f"input_blocks.{2 * level + 2}", f"input_blocks.{STEP * level + 3}"))
        for i in (0, 1):
            ours, theirs = f"output_blocks.{2 * level + i}", f"output_blocks.{STEP * level + i}"
            pairs += [(f"{ours}.{layer}", f"{theirs}.{layer}") for layer in (0, 1)]
        layer = 1 + (levels - 1 - level in attention)
        # The script's: the first level out has no transformers in Stable Diffusion 1.
        theirs = f"output_blocks.{STEP * level + 2}.{1 if level == 0 else 2}"
        pairs.append((f"output_blocks.{2 * level + 1}.{layer}", theirs))
    pairs += [(f"output_blocks.{i}.1", f"up_blocks.0.attentions.{i}") for i in (0, 1)]
    return Keymap(Row(ours, (theirs,), SAME) for ours, theirs in pairs)
