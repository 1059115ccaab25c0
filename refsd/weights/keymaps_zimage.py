"""Z-Image's transformer, as single files have it, and as Tongyi-MAI's own folder.

The folder, which diffusers' ZImageTransformer2DModel reads as it is, splits q, k and v, and names the
two ends after the patch they are for ("2-1": 2 x 2 pixels, 1 frame).
"""

from refsd.weights.keymaps import CONCAT, SAME, Keymap, Row

# ours, theirs (several: concatenated), rule.
ENDS = (
    ("x_embedder", ("all_x_embedder.2-1",), SAME),
    ("final_layer.linear", ("all_final_layer.2-1.linear",), SAME),
    ("final_layer.adaLN_modulation.1", ("all_final_layer.2-1.adaLN_modulation.1",), SAME),
    ("t_embedder.mlp.0", ("t_embedder.mlp.0",), SAME),
    ("t_embedder.mlp.2", ("t_embedder.mlp.2",), SAME),
    ("cap_embedder.0", ("cap_embedder.0",), SAME),
    ("cap_embedder.1", ("cap_embedder.1",), SAME),
    ("x_pad_token", ("x_pad_token",), SAME),
    ("cap_pad_token", ("cap_pad_token",), SAME),
)
BLOCK = (
    ("attention.qkv", ("attention.to_q", "attention.to_k", "attention.to_v"), CONCAT),
    ("attention.out", ("attention.to_out.0",), SAME),
    ("attention.q_norm", ("attention.norm_q",), SAME),
    ("attention.k_norm", ("attention.norm_k",), SAME),
    ("feed_forward.w1", ("feed_forward.w1",), SAME),
    ("feed_forward.w2", ("feed_forward.w2",), SAME),
    ("feed_forward.w3", ("feed_forward.w3",), SAME),
    ("attention_norm1", ("attention_norm1",), SAME),
    ("attention_norm2", ("attention_norm2",), SAME),
    ("ffn_norm1", ("ffn_norm1",), SAME),
    ("ffn_norm2", ("ffn_norm2",), SAME),
    ("adaLN_modulation.0", ("adaLN_modulation.0",), SAME),
)


def zimage(layers: int = 30, refiners: int = 2) -> Keymap:
    """Z-Image <-> Tongyi-MAI's folder, which diffusers reads as it is."""
    rows = [Row(*row) for row in ENDS]
    for stack, n in (("layers", layers), ("noise_refiner", refiners), ("context_refiner", refiners)):
        for i in range(n):
            at = f"{stack}.{i}."
            rows += [Row(at + ours, tuple(at + part for part in theirs), rule) for ours, theirs, rule in BLOCK]
    return Keymap(rows)
