"""What Qwen3, Mistral and Gemma 2 share: tensors, prefixes in files, tensors that refsd ignores."""

from collections.abc import Mapping

from refsd.models.language_model.llama_cpp_names import HEADLESS
from refsd.networks.dimensions import Shape, Shapes, Size, count, dim
from refsd.networks.keymap import Keymap, prefix_rows


def decoder_shapes(size, norms=("input", "post_attention"), head_norms=False, final_norm=True) -> Shapes:
    """Return the shapes of a language model's tensors, without its output head, under transformers' names.

    size:       has hidden, layers, heads, kv_heads, head_dim, mlp and vocab
    norms:      of a layer, without "_layernorm"
    head_norms: True if queries and keys are normalised, each head by itself

    Source: transformers' Qwen3ForCausalLM, MistralForCausalLM and Gemma2ForCausalLM.
    """
    D, queries, keys = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"model.layers.{i}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, D)
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (keys, D) for name in "kv"}
        shapes[f"{at}.self_attn.o_proj.weight"] = (D, queries)
        shapes |= {f"{at}.self_attn.{name}_norm.weight": (size.head_dim,) for name in "qk" if head_norms}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (size.mlp, D) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (D, size.mlp)
        shapes |= {f"{at}.{name}_layernorm.weight": (D,) for name in norms}
    return shapes | ({"model.norm.weight": (D,)} if final_norm else {})


def decoder_size(usual: Size, shapes: Mapping[str, Shape], head_dim: int) -> Size:
    """Infer a language model's size from shapes under transformers' names.

    usual:    the size that gives the dimensions of missing tensors
    head_dim: channels of a head
    """
    tokens, layer = "model.embed_tokens.weight", "model.layers.0"

    def heads(name: str, default: int) -> int:
        at = f"{layer}.self_attn.{name}_proj"
        rows = dim(shapes, f"{at}.weight", 0, dim(shapes, f"{at}.bias", 0, default * head_dim))
        return max(1, rows // head_dim)

    return usual._replace(
        hidden=dim(shapes, tokens, 1, dim(shapes, "model.norm.weight", 0, usual.hidden)),
        layers=count(shapes, "model.layers.", usual.layers),
        heads=heads("q", usual.heads),
        kv_heads=heads("k", heads("v", usual.kv_heads)),
        head_dim=head_dim,
        mlp=dim(shapes, f"{layer}.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=dim(shapes, tokens, 0, usual.vocab),
    )


def decoder_keymap() -> Keymap:
    """Map names to and from transformers' classes for causal models; also read names that lack `model.`."""
    return Keymap(prefix_rows((f"model.{name}", at + name) for at in ("model.", "") for name in HEADLESS))


LLM_PREFIXES = (
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
    "text_encoders.llm.",
    "text_encoder.",
    "",
)
# Tensors of a language model's files that refsd ignores: output head and vision weights.
NOT_TEXT = ("lm_head.*", "vision_tower.*", "model.vision_tower.*", "*multi_modal_projector.*", "output.weight")
