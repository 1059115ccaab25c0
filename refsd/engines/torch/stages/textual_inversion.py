"""Textual inversion by diffusers' loader, with transformers' CLIP."""

from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.clip_tokens import new_tokenizer
from refsd.engines.torch.stages.torch_stage import Params, TorchStage
from refsd.tokenizers.vocabulary import open_clip_file


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] != "diffusers":
        return f"diffusers does not find names as {p['engine']} does"
    if set(p["encoders"]) != {"clip"}:
        return "diffusers loads the embeddings of one encoder at a time"
    return None if open_clip_file() else "CLIP's vocabulary is not installed: pip install open_clip_torch"


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers.loaders import TextualInversionLoaderMixin
    from transformers import CLIPTextConfig, CLIPTextModel

    tokenizer, width = new_tokenizer("<|endoftext|>"), p["encoders"]["clip"]
    own = len(tokenizer)
    sizes = {"hidden_size": width, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    encoder = CLIPTextModel(CLIPTextConfig(vocab_size=own, **sizes))

    class Pipeline(TextualInversionLoaderMixin):
        _execution_device = device = "cpu"

    pipe = Pipeline()
    pipe.components, pipe.hf_device_map = {}, None
    pipe.tokenizer, pipe.text_encoder = tokenizer, encoder
    files: dict[str, dict[str, Any]] = {}
    for name, tensor in t.items():
        file, _, inner = name.partition(":")
        files.setdefault(file, {})[inner] = tensor
    for tensors in files.values():
        pipe.load_textual_inversion(tensors)
    prompt = pipe.maybe_convert_prompt(p["prompt"], tokenizer)
    tokens = tokenizer(prompt, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
    ids = tokens.input_ids
    learned = encoder.get_input_embeddings()(ids) * (ids >= own)[..., None]
    return {"ids": torch.where(ids >= own, -1, ids), "weights": torch.ones(ids.shape), "clip": learned.detach()}


STAGES = {"stage/textual_inversion": TorchStage("transformers", _refuses, _run)}
