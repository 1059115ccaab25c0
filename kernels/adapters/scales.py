"""Compute a delta's scale from alpha and rank, by the rule of each trainer and engine.

"alpha" is a number in the file. If it is missing, kohya, LyCORIS and ComfyUI use the scale 1 (alpha = rank).
"""

import math


def alpha_over_rank(alpha: float | None, rank: int) -> float:
    """Compute alpha / rank: kohya, LyCORIS, ComfyUI, PEFT. rank: rows of lora_down or hada_w1_b; LoKr: lokr_scale.

    LyCORIS with rs_lora writes alpha sqrt(rank) to its file, so this rule suits it too.
    """
    return 1.0 if alpha is None else alpha / rank


def alpha_over_root(alpha: float, rank: int) -> float:
    """Compute alpha / sqrt(rank): PEFT with use_rslora. Source: Kalajdzievski 2023, section 4."""
    return alpha / math.sqrt(rank)


def lokr_rank(w1_rank: int | None, w2_rank: int | None) -> int | None:
    """Return the rank of a LoKr: W2's, else W1's, else None. A factor that is not decomposed has rank None.

    LyCORIS gives both factors the same rank; ComfyUI and stable-diffusion.cpp prefer W2's.
    """
    return w1_rank if w2_rank is None else w2_rank


def lokr_scale(alpha: float | None, rank: int | None) -> float:
    """Compute the scale of LyCORIS and ComfyUI: 1 if neither factor is decomposed, else alpha / rank."""
    return 1.0 if rank is None else alpha_over_rank(alpha, rank)


def lokr_scale_peft(alpha: float, rank: int) -> float:
    """Compute PEFT's scale: alpha / r of its configuration, even if neither factor is decomposed."""
    return alpha / rank


def rank_sdcpp(rank: int | None, columns: int) -> int | None:
    """Return the rank that stable-diffusion.cpp uses: for a part of one row, [1, columns], the number of columns.

    ggml_n_dims ignores trailing axes of size 1, which are torch's leading ones, so the last remaining axis is not
    the rank's. This applies to LoRA (lora_down), LoHa (hada_w1_b) and LoKr (lokr_w2_b, else lokr_w1_b).

    Source: stable-diffusion.cpp lora.hpp, ne[ggml_n_dims(t) - 1]. Seen in runs: tests/peers/test_adapters_sdcpp.py.
    """
    return columns if rank == 1 else rank


def lokr_scale_sdcpp(alpha: float | None, rank: int | None) -> float:
    """Compute stable-diffusion.cpp's scale for LoKr: 1 if the rank is None or 1. rank: from rank_sdcpp

    Source: stable-diffusion.cpp lora.hpp, get_lokr_weight_diff and get_out_diff ("if (rank == 1)").
    """
    return 1.0 if rank in (None, 1) else alpha_over_rank(alpha, rank)


def lokr_scale_lycoris_diff(alpha: float | None, rank: int | None) -> float:
    """Compute the squared scale that LyCORIS 4.1.3's get_diff_weight and get_merged_weight use for LoKr and LoHa.

    They multiply the result of get_weight, which is already scaled, once more; merge_to does the same. The forward
    of training scales once.
    """
    return lokr_scale(alpha, rank) ** 2
