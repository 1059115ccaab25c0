"""Text rules of encoders that several families share; concatenation of hidden states."""

import numpy as np

from refsd.families.family import TextEncoder
from refsd.numerics.errors import BadInput
from refsd.tokenizers.text_rules import TextRule, as_long_as_it_is, cut_off, in_chunks

DIFFUSERS, SDCPP = "diffusers pipelines/", "stable-diffusion.cpp src/conditioning/conditioner.hpp "

CLIP = TextRule(77, cut_off, bos=True, eos=True, source=DIFFUSERS + "stable_diffusion_xl, encode_prompt")
CLIP_CHUNKS = CLIP._replace(over=in_chunks, source=SDCPP + "tokenize")
# OpenAI's CLIP-L pads with its EOS token, OpenCLIP's encoders with 0.
CLIP_L = TextEncoder({"diffusers": CLIP, "sdcpp": CLIP_CHUNKS})
OPEN_CLIP = TextEncoder({"diffusers": CLIP._replace(pad=0), "sdcpp": CLIP_CHUNKS._replace(pad=0)})

T5 = TextRule(512, cut_off, eos=True, source=DIFFUSERS + "flux, _get_t5_prompt_embeds")
T5_CHUNKS = TextRule(256, in_chunks, eos=True, source=SDCPP + "FluxCLIPEmbedder")

USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
QWEN3 = TextRule(512, cut_off, mask=True, around=(USER, ASSISTANT), source=DIFFUSERS + "z_image, _encode_prompt")
QWEN3_SDCPP = TextRule(None, as_long_as_it_is, mask=True, around=(USER, ASSISTANT), source=SDCPP + "LLMEmbedder")


def side_by_side(one, other) -> np.ndarray:
    """Concatenate on the last axis. Raises BadInput if the other axes differ."""
    if one.shape[:-1] != other.shape[:-1]:
        raise BadInput(f"hidden states of {list(one.shape)} and {list(other.shape)} do not stand side by side")
    return np.concatenate([one, other], axis=-1)
