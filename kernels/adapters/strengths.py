"""Where a strength s enters an adapter that is no plain difference: a rule for each trainer and engine.

All rules agree at s = 1. Differences (LoRA, LoHa, LoKr, GLoRA, IA3, full) are multiplied by s in all of them.
"""

from typing import NamedTuple


class DoRAShares(NamedTuple):
    """
        weight <- weight + whole ((1 + gain (g - 1)) (weight + inner delta) - weight)

    g: the magnitude over a length; where the length is of weight + delta, it is of weight + inner delta
    """

    whole: float = 1.0
    gain: float = 1.0
    inner: float = 1.0


def dora_lycoris(strength) -> DoRAShares:
    """The rescaling is weakened, the difference is not: at 0 the weight still has it.

    Source: LyCORIS 4.1.3 functional/general.py, weight_decompose, as its modules call it.
    """
    return DoRAShares(gain=strength)


def dora_whole(strength) -> DoRAShares:
    """ComfyUI and A1111: a share of the way from the weight to the merged weight.

    Source: ComfyUI comfy/weight_adapter/base.py, weight_decompose; A1111 extensions-builtin/Lora/network.py.
    """
    return DoRAShares(whole=strength)


def dora_peft(strength) -> DoRAShares:
    """The difference is weakened, and the lengths are measured with it: at 0 the rows still have their magnitudes.

    Source: PEFT 0.21.2 tuners/lora/layer.py, scale_layer; tuners/lora/dora.py.
    """
    return DoRAShares(inner=strength)


class TurnShares(NamedTuple):
    """
        weight <- weight + whole (gain turned - weight)         each stage's blocks turn (R - 1) + 1

    The gain, of OFT with rescale, is in full.
    """

    whole: float = 1.0
    turn: float = 1.0


def turn_lycoris(strength) -> TurnShares:
    """LyCORIS and kohya: each block between the identity and itself. With a gain, 0 is not the weight.

    Source: LyCORIS 4.1.3 modules/diag_oft.py, make_weight; functional/boft.py; kohya-ss/sd-scripts networks/oft.py.
    """
    return TurnShares(turn=strength)


def turn_comfyui(strength) -> TurnShares:
    """Both: of one stage the square of the strength is left.

    Source: ComfyUI comfy/weight_adapter/oft.py and boft.py, calculate_weight.
    """
    return TurnShares(strength, strength)


def turn_whole(strength) -> TurnShares:
    """A1111: a share of the way from the weight to the merged weight.

    Source: A1111 extensions-builtin/Lora/network_oft.py.
    """
    return TurnShares(whole=strength)
