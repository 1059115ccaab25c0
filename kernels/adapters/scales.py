"""What alpha and rank make of a delta: one rule for each trainer and engine.

"alpha" is a number in the file. Where it is missing, kohya, LyCORIS and ComfyUI take the scale 1 (alpha = rank).
"""

import math


def alpha_over_rank(alpha: float | None, rank: int) -> float:
    """kohya, LyCORIS, ComfyUI, PEFT. rank: rows of lora_down; of hada_w1_b; see lokr_scale for LoKr.

    LyCORIS with rs_lora writes alpha sqrt(rank) into its file, so that this rule is right for it too.
    """
    return 1.0 if alpha is None else alpha / rank


def alpha_over_root(alpha: float, rank: int) -> float:
    """PEFT with use_rslora: alpha / sqrt(rank). Source: Kalajdzievski 2023, section 4."""
    return alpha / math.sqrt(rank)


def lokr_rank(w1_rank: int | None, w2_rank: int | None) -> int | None:
    """The rank of a LoKr: W2's, else W1's, else none. Ranks are None for a factor in full.

    LyCORIS gives both parts one rank; ComfyUI and stable-diffusion.cpp let W2's win.
    """
    return w1_rank if w2_rank is None else w2_rank


def lokr_scale(alpha: float | None, rank: int | None) -> float:
    """LyCORIS, ComfyUI: 1 where both factors are in full (whatever alpha says), else alpha / rank."""
    return 1.0 if rank is None else alpha_over_rank(alpha, rank)


def lokr_scale_peft(alpha: float, rank: int) -> float:
    """PEFT: alpha / r of its configuration, also where both factors are in full."""
    return alpha / rank


def rank_sdcpp(rank: int | None, columns: int) -> int | None:
    """What stable-diffusion.cpp takes for the rank: of a part of one row, [1, columns], the columns.

    ggml's number of axes leaves out the 1s of its last axes, which are torch's first: the last one that is then
    found is not the rank's. LoRA (lora_down), LoHa (hada_w1_b) and LoKr (lokr_w2_b, else lokr_w1_b) alike.

    Source: stable-diffusion.cpp lora.hpp, ne[ggml_n_dims(t) - 1]. Seen in runs: tests/peers/test_adapters_sdcpp.py.
    """
    return columns if rank == 1 else rank


def lokr_scale_sdcpp(alpha: float | None, rank: int | None) -> float:
    """stable-diffusion.cpp: no rank, and one of 1, both make the scale 1. rank: from rank_sdcpp.

    Source: stable-diffusion.cpp lora.hpp, get_lokr_weight_diff and get_out_diff ("if (rank == 1)").
    """
    return 1.0 if rank in (None, 1) else alpha_over_rank(alpha, rank)


def lokr_scale_lycoris_diff(alpha: float | None, rank: int | None) -> float:
    """LyCORIS 4.1.3's get_diff_weight and get_merged_weight, of LoKr and LoHa: the scale twice.

    get_weight has multiplied by it already; forward, which trains, does it once. merge_to: as get_merged_weight.
    """
    return lokr_scale(alpha, rank) ** 2
