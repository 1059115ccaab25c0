"""CLIP's ids by transformers' tokenizer."""

import functools
from collections.abc import Set
from typing import Any

import numpy as np

from refsd.engines.torch.stages.torch_stage import Params, TorchStage
from refsd.tokenizers.clip_bpe import vocabulary
from refsd.tokenizers.vocabulary import open_clip_file, read_merges


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] != "diffusers":
        return f"transformers does not follow {p['engine']}'s rule"
    return None if open_clip_file() else "CLIP's vocabulary is not installed: pip install open_clip_torch"


def new_tokenizer(pad: str):
    """Return a new CLIP tokenizer, to which tokens may be added."""
    from transformers import CLIPTokenizer

    file = open_clip_file()
    assert file is not None
    merges = read_merges(file)
    ids = {token: i for i, token in enumerate(vocabulary(merges))}
    return CLIPTokenizer(vocab=ids, merges=list(merges), pad_token=pad)


_tokenizer = functools.cache(new_tokenizer)


def _run(torch, t, p: Params) -> dict[str, Any]:
    """SDXL's second encoder pads with the token 0, "!"."""
    tokenizer = _tokenizer("!" if p["encoder"] == "clip_g" else "<|endoftext|>")
    ids = tokenizer(p["prompt"], padding="max_length", max_length=77, truncation=True).input_ids
    return {"ids": np.array([ids]), "weights": np.ones((1, 77), np.float32)}


STAGES = {"stage/clip_tokens": TorchStage("transformers", _refuses, _run)}
