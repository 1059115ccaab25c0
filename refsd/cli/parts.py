"""Options that several commands share: files for a model's parts, under sd-cli's names, --lora-rule, --html."""

from pathlib import Path
from typing import Annotated

import typer


def _file(flag: str, what: str):
    return typer.Option(flag, help=f"{what}: a separate file that replaces the model's.", rich_help_panel="Parts")


DiffusionModel = Annotated[Path | None, _file("--diffusion-model", "UNet or transformer")]
Vae = Annotated[Path | None, _file("--vae", "Autoencoder")]
Taesd = Annotated[Path | None, _file("--taesd", "Tiny autoencoder")]
ClipL = Annotated[Path | None, _file("--clip_l", "CLIP-L")]
ClipG = Annotated[Path | None, _file("--clip_g", "OpenCLIP bigG")]
T5XXL = Annotated[Path | None, _file("--t5xxl", "T5")]
Llm = Annotated[Path | None, _file("--llm", "Qwen3, Qwen2.5-VL, Qwen3-VL or Mistral")]
LlmVision = Annotated[Path | None, _file("--llm_vision", "Qwen2.5-VL's or Qwen3-VL's vision tower (mmproj)")]
ControlNet = Annotated[Path | None, _file("--control-net", "ControlNet")]
ClipVision = Annotated[Path | None, _file("--clip_vision", "SigLIP or CLIP's image encoder")]
Redux = Annotated[Path | None, _file("--redux", "FLUX.1 Redux")]
IPAdapter = Annotated[Path | None, _file("--ip-adapter", "IP-Adapter of SD 1.5 or SDXL")]
Vocab = Annotated[
    Path | None,
    typer.Option(
        help="CLIP's tokenizer.json, merges.txt or bpe_simple_vocab_16e6.txt.gz.", rich_help_panel="Parts"
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        help="Tokenizer of T5, Qwen3 or Mistral: tokenizer.json, spiece.model, a GGUF or a folder. "
        "Default: the one in the model or the encoder.",
        rich_help_panel="Parts",
    ),
]
CHECKPOINT = (
    "Checkpoint: a .safetensors or .gguf file, a diffusers folder, or recipe:FAMILY[:TYPE][:tiny]: drawn weights."
)
LoraRule = Annotated[
    str,
    typer.Option(
        "--lora-rule",
        help="Rule for DoRA, OFT and BOFT, on which programs differ at strengths other than 1: trainer "
        "(LyCORIS's or PEFT's, as the file says), lycoris, peft (diffusers), comfyui, a1111 or sdcpp.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file too.")]

# Files of a model's parts, in the order of sd-cli's help: parameter -> annotation.
PARTS = {
    "diffusion_model": DiffusionModel,
    "vae": Vae,
    "taesd": Taesd,
    "clip_l": ClipL,
    "clip_g": ClipG,
    "t5xxl": T5XXL,
    "llm": Llm,
    "control_net": ControlNet,
    "ip_adapter": IPAdapter,
    "clip_vision": ClipVision,
    "redux": Redux,
    "llm_vision": LlmVision,
    "vocab": Vocab,
    "tokenizer": Tokenizer,
}
FLAGS = (
    *("--diffusion-model", "--vae", "--taesd", "--clip_l", "--clip_g", "--t5xxl", "--llm", "--control-net"),
    *("--ip-adapter", "--clip_vision", "--redux", "--llm_vision"),
)


def part_files(*files: Path | None) -> dict[str, Path]:
    """Return flag -> file for the parts that were given. files: in the order of FLAGS, the last may be left out

    A part may be recipe:FAMILY[:TYPE][:tiny], as a model may.
    """
    from refsd.weights.model_files import model_path

    return {flag: model_path(file) for flag, file in zip(FLAGS, files, strict=False) if file is not None}
