"""What Qwen3 and Mistral share: prefixes in files, config.json, tensors that refsd ignores."""


def llm_config(size, architecture: str, model_type: str, eps: float, theta: float) -> dict:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": model_type == "qwen3",
    }


LANGUAGE_MODEL_FIELDS = {
    "hidden_act": ("silu",),
    "rope_type": ("default",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "attention_bias": (False,),
}
LLM_PREFIXES = (
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
    "text_encoders.llm.",
    "text_encoder.",
    "",
)
# Tensors of a language model's files that refsd ignores: output head and vision weights.
NOT_TEXT = ("lm_head.*", "vision_tower.*", "model.vision_tower.*", "*multi_modal_projector.*", "output.weight")
