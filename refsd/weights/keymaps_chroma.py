"""Where diffusers keeps Chroma's tensors: FLUX.1's table without the modulation, and the approximator."""

from refsd.weights.keymaps import FLUX_DOUBLE, FLUX_ENDS, FLUX_SINGLE, SAME, Keymap, Row

CHROMA_ENDS = tuple(row for row in FLUX_ENDS if row[0] in ("img_in", "txt_in", "final_layer.linear"))
APPROXIMATOR = "distilled_guidance_layer"
APPROXIMATOR_ENDS = ("in_proj", "out_proj")
APPROXIMATOR_LAYER = (
    ("layers.{}.in_layer", "layers.{}.linear_1"),
    ("layers.{}.out_layer", "layers.{}.linear_2"),
    ("norms.{}.scale", "norms.{}.weight"),
)


def chroma(double_blocks: int = 19, single_blocks: int = 38, layers: int = 5) -> Keymap:
    """Chroma <-> diffusers' ChromaTransformer2DModel, which splits q, k and v."""
    rows = [Row(*row) for row in CHROMA_ENDS]
    rows += [Row(f"{APPROXIMATOR}.{end}", (f"{APPROXIMATOR}.{end}",), SAME) for end in APPROXIMATOR_ENDS]
    for i in range(layers):
        for ours, theirs in APPROXIMATOR_LAYER:
            rows.append(Row(f"{APPROXIMATOR}.{ours.format(i)}", (f"{APPROXIMATOR}.{theirs.format(i)}",), SAME))
    for table, n, here, there in (
        (FLUX_DOUBLE, double_blocks, "double_blocks", "transformer_blocks"),
        (FLUX_SINGLE, single_blocks, "single_blocks", "single_transformer_blocks"),
    ):
        for i in range(n):
            for name, parts, rule in table:
                if not name.endswith(".lin"):
                    rows.append(Row(f"{here}.{i}.{name}", tuple(f"{there}.{i}.{part}" for part in parts), rule))
    return Keymap(rows)
