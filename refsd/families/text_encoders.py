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
# ComfyUI encodes the whole prompt in one row, and reads weights for CLIP and T5, not for language models.
T5_COMFYUI = TextRule(
    None, as_long_as_it_is, eos=True, least=256, source="ComfyUI comfy/text_encoders/flux.py, T5XXLTokenizer"
)
T5_CHUNKS = TextRule(256, in_chunks, eos=True, source=SDCPP + "FluxCLIPEmbedder")

USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
QWEN3 = TextRule(512, cut_off, mask=True, around=(USER, ASSISTANT), source=DIFFUSERS + "z_image, _encode_prompt")
# The system prompt of Qwen-Image, 34 tokens long, whose hidden states are dropped.
DESCRIBE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
# Qwen-Image takes at most 512 tokens after the dropped ones: max_sequence_length of the pipelines' __call__.
QWEN_IMAGE = TextRule(
    34 + 512,
    cut_off,
    mask=True,
    around=(DESCRIBE, ASSISTANT),
    drop=34,
    fill=False,
    source=DIFFUSERS + "qwenimage, _get_qwen_prompt_embeds",
)
QWEN_IMAGE_COMFYUI = QWEN_IMAGE._replace(
    length=None, over=as_long_as_it_is, plain=True, source="ComfyUI comfy/text_encoders/qwen_image.py"
)
QWEN_IMAGE_SDCPP = QWEN_IMAGE._replace(length=None, over=as_long_as_it_is, source=SDCPP + "LLMEmbedder")
# Edit and Edit Plus: the words of the images to edit stand before the prompt.
CHANGE = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new "
    "image that meets the user's requirements while maintaining consistency with the original input where "
    "appropriate.<|im_end|>\n<|im_start|>user\n"
)
QWEN_IMAGE_EDIT = QWEN_IMAGE._replace(
    length=None,
    over=as_long_as_it_is,
    around=(CHANGE, ASSISTANT),
    drop=64,
    source=DIFFUSERS + "qwenimage, pipeline_qwenimage_edit_plus.py",
)

ILLUSTRATE = (
    "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
    "based on textual prompts or user prompts. <Prompt Start> "
)
# The negative prompt has no template.
GEMMA2_NEGATIVE = TextRule(
    256, cut_off, bos=True, mask=True, source=DIFFUSERS + "lumina2, _get_gemma_prompt_embeds"
)
GEMMA2 = GEMMA2_NEGATIVE._replace(around=(ILLUSTRATE, ""))

QWEN3_SDCPP = TextRule(None, as_long_as_it_is, mask=True, around=(USER, ASSISTANT), source=SDCPP + "LLMEmbedder")
QWEN3_COMFYUI = QWEN3_SDCPP._replace(plain=True, source="ComfyUI comfy/text_encoders/z_image.py")


def side_by_side(one, other) -> np.ndarray:
    """Concatenate on the last axis. Raises BadInput if the other axes differ."""
    if one.shape[:-1] != other.shape[:-1]:
        raise BadInput(f"hidden states of {list(one.shape)} and {list(other.shape)} do not stand side by side")
    return np.concatenate([one, other], axis=-1)
