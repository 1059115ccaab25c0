"""Where diffusers, and the original's two files, keep TAESD's tensors."""

from refsd.weights.keymaps import SAME, Keymap, Row


def taesd(encoder_layers: int = 15, decoder_layers: int = 19) -> Keymap:
    """TAESD's "encoder." and "decoder." <-> diffusers' AutoencoderTiny, whose decoder clamps outside its layers.

    encoder_layers, decoder_layers: how many places the two nn.Sequential have, theirs
    """
    rows = [Row(f"encoder.{i}", (f"encoder.layers.{i}",), SAME) for i in range(encoder_layers)]
    rows += [Row(f"decoder.{i + 1}", (f"decoder.layers.{i}",), SAME) for i in range(decoder_layers)]
    return Keymap(rows)


def taesd_half(half: str, layers: int) -> Keymap:
    """TAESD's "encoder." or "decoder." <-> the original's file of that half, whose names begin with a place.

    layers: how many places its nn.Sequential has
    """
    return Keymap(Row(f"{half}.{i}", (f"{i}",), SAME) for i in range(layers))
