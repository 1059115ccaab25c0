"""SD3's and SD3.5's names in diffusers: SD3Transformer2DModel."""

from refsd.weights.keymaps import CONCAT, SAME, SWAP, Keymap, Row

# Ours, theirs (several: concatenated), rule.

MMDIT_ENDS = (
    ("pos_embed", ("pos_embed.pos_embed",), SAME),
    ("x_embedder.proj", ("pos_embed.proj",), SAME),
    ("t_embedder.mlp.0", ("time_text_embed.timestep_embedder.linear_1",), SAME),
    ("t_embedder.mlp.2", ("time_text_embed.timestep_embedder.linear_2",), SAME),
    ("y_embedder.mlp.0", ("time_text_embed.text_embedder.linear_1",), SAME),
    ("y_embedder.mlp.2", ("time_text_embed.text_embedder.linear_2",), SAME),
    ("context_embedder", ("context_embedder",), SAME),
    ("final_layer.linear", ("proj_out",), SAME),
    ("final_layer.adaLN_modulation.1", ("norm_out.linear",), SWAP),
)
MMDIT_BLOCK = (
    ("x_block.adaLN_modulation.1", ("norm1.linear",), SAME),
    ("x_block.attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("x_block.attn.ln_q", ("attn.norm_q",), SAME),
    ("x_block.attn.ln_k", ("attn.norm_k",), SAME),
    ("x_block.attn.proj", ("attn.to_out.0",), SAME),
    ("x_block.attn2.qkv", ("attn2.to_q", "attn2.to_k", "attn2.to_v"), CONCAT),
    ("x_block.attn2.ln_q", ("attn2.norm_q",), SAME),
    ("x_block.attn2.ln_k", ("attn2.norm_k",), SAME),
    ("x_block.attn2.proj", ("attn2.to_out.0",), SAME),
    ("x_block.mlp.fc1", ("ff.net.0.proj",), SAME),
    ("x_block.mlp.fc2", ("ff.net.2",), SAME),
    ("context_block.attn.qkv", ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), CONCAT),
    ("context_block.attn.ln_q", ("attn.norm_added_q",), SAME),
    ("context_block.attn.ln_k", ("attn.norm_added_k",), SAME),
    ("context_block.attn.proj", ("attn.to_add_out",), SAME),
    ("context_block.mlp.fc1", ("ff_context.net.0.proj",), SAME),
    ("context_block.mlp.fc2", ("ff_context.net.2",), SAME),
)


def mmdit(joint_blocks: int = 24) -> Keymap:
    """SD3 or SD3.5 <-> diffusers, which splits q, k, v and swaps the last scale and shift of either stream."""
    rows = [Row(*row) for row in MMDIT_ENDS]
    for i in range(joint_blocks):
        ours, theirs = f"joint_blocks.{i}", f"transformer_blocks.{i}"
        for name, parts, rule in MMDIT_BLOCK:
            rows.append(Row(f"{ours}.{name}", tuple(f"{theirs}.{part}" for part in parts), rule))
        last = SWAP if i == joint_blocks - 1 else SAME
        rows.append(Row(f"{ours}.context_block.adaLN_modulation.1", (f"{theirs}.norm1_context.linear",), last))
    return Keymap(rows)
