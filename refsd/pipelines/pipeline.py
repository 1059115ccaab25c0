"""Load the components of a checkpoint that txt2img needs."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.families import VARIANTS
from refsd.families.editing import Editing
from refsd.families.family import Variant
from refsd.files.json_files import read_json
from refsd.models.catalogue import DENOISERS, NETWORKS
from refsd.models.ip_adapter.network import reads_embedding
from refsd.module import WeightCache
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.pipelines.autoencoders import KINDS, PIXELS, Autoencoder, open_autoencoder
from refsd.pipelines.loaded_component import LoadedComponent, Loras, check_present, load_component
from refsd.pipelines.prompts import Tokenizers
from refsd.weights import Checkpoint


class Pipeline(NamedTuple):
    """A model that draws.

    encoders:       of text, by name
    image_encoders: those that turn a picture into words: "siglip" and "redux", or a vision tower;
                    "clip-vision" and "ip-adapter"
    """

    variant: Variant
    encoders: Mapping[str, LoadedComponent]
    denoiser: LoadedComponent
    autoencoder: Autoencoder
    tokenizers: Tokenizers
    checkpoint: Checkpoint
    image_encoders: Mapping[str, LoadedComponent] = {}

    @property
    def dtype(self) -> np.dtype:
        """dtype of the latents: the compute dtype of the numerics."""
        return self.denoiser.dtype

    @property
    def reference_arguments(self) -> list[str]:
        """Return the denoiser's arguments for latents of pictures to edit, in their order."""
        return [name for name in self.denoiser.arguments if name.startswith(("reference", "condition"))]

    def denoiser_of(self, convention: Convention) -> LoadedComponent:
        """Return the denoiser with the params of the convention's engine."""
        params = {**self.denoiser.params, **convention.row(self.variant.params)}
        return self.denoiser._replace(params=params)

    def decoding_as(self, convention: Convention) -> "Pipeline":
        """Return the pipeline with the autoencoder's params of the convention's engine."""
        return self._replace(autoencoder=self.autoencoder.with_params(convention.row(self.variant.decoding)))

    def editing(self, convention: Convention) -> Editing | None:
        """Return how pictures to edit are shown to the text encoder; None if they are not."""
        if self.variant.editing is None:
            return None
        rows = convention.row(self.variant.editing)
        index = self.checkpoint.path / "model_index.json"
        program = read_json(index).get("_class_name") if index.is_file() else None
        return rows.get(str(program), rows[""])


def open_pipeline(
    checkpoint: Checkpoint,
    tokenizers: Tokenizers,
    arithmetic: Arithmetic,
    budget: int = 0,
    loras: Loras = (),
) -> Pipeline:
    """Load a checkpoint's components.

    budget: bytes of the denoiser's expanded weights to keep between steps; text encoders keep none
    loras:  adapter files and their strengths, for the denoiser and the text encoders

    Raises BadInput if a component is missing, or txt2img does not support the model.
    """
    family = checkpoint.family
    assert family is not None
    if family.name == "parts":
        check_present(checkpoint, [DENOISERS])
    variant = VARIANTS[family.name]
    if not variant.draws:
        raise BadInput(
            f"{checkpoint.path}: {family.title} ({family.why}); txt2img does not draw with it: "
            "run its components with refsd forward"
        )
    needed = [(name,) for name, encoder in variant.encoders.items() if not encoder.optional]
    check_present(checkpoint, needed if variant.pixel_space else [*needed, KINDS])
    name = next(name for name in DENOISERS if name in checkpoint.components)
    denoiser = load_component(checkpoint, name, arithmetic, loras, WeightCache(budget))
    present = [name for name in variant.encoders if name in checkpoint.components]
    encoders = {name: load_component(checkpoint, name, arithmetic, loras) for name in present}
    vae = PIXELS if variant.pixel_space else open_autoencoder(checkpoint, arithmetic, denoiser.latent_channels)
    images = _image_encoders(checkpoint, arithmetic, name)
    vae = vae.with_params(variant.decoding["sdcpp"])
    return Pipeline(variant, encoders, denoiser, vae, tokenizers, checkpoint, images)


def _image_encoders(checkpoint: Checkpoint, arithmetic: Arithmetic, denoiser: str) -> dict[str, LoadedComponent]:
    """Load Redux or an IP-Adapter and the encoder before it, or a vision tower.

    Raises BadInput for Redux or an IP-Adapter without its encoder.
    """
    if "redux" in checkpoint.components and "siglip" not in checkpoint.components:
        raise BadInput("--redux: it reads a picture through SigLIP: give that with --clip_vision")
    names = [
        name for name in ("siglip", "redux", "qwen2_5_vision", "qwen3_vision") if name in checkpoint.components
    ]
    if "ip-adapter" in checkpoint.components:
        _check_ip_adapter(checkpoint, denoiser)
        names += ["clip-vision", "ip-adapter"]
    return {name: load_component(checkpoint, name, arithmetic) for name in names}


def _check_ip_adapter(checkpoint: Checkpoint, denoiser: str) -> None:
    """Raise BadInput for an IP-Adapter without its encoder or with another, and beside a model that is no UNet."""
    held = checkpoint.components["ip-adapter"]
    file, reads = held.weights.file.path, held.size.seen
    if denoiser != "unet":
        raise BadInput(
            f"{file}: an IP-Adapter of SD 1.5 or SDXL; the model is {NETWORKS[denoiser].title}: leave it out"
        )
    if "clip-vision" not in checkpoint.components:
        raise BadInput("--ip-adapter: it reads a picture through CLIP's vision tower: give that with --clip_vision")
    tower = checkpoint.components["clip-vision"].size
    gives = tower.projection if reads_embedding(held.size) else tower.hidden
    if reads != gives:
        raise BadInput(
            f"{file}: this IP-Adapter reads {reads} channels, and --clip_vision gives {gives}: most read ViT-H's, "
            "ip-adapter_sdxl bigG's, InstantID's 512 numbers of a face that refsd does not compute"
        )


def with_zero_cond_t(pipe: Pipeline) -> Pipeline:
    """Treat the weights as Qwen-Image-Edit 2511's. Raises BadInput for another family."""
    if pipe.denoiser.name != "qwen-image":
        raise BadInput(f"--qwen-image-zero-cond-t: {pipe.variant.title} is no Qwen-Image-Edit; leave it out")
    return _with_param(pipe, "zero_cond_t")


def with_cached_references(pipe: Pipeline, convention: Convention) -> Pipeline:
    """Treat the weights as FLUX.2 klein KV's. Raises BadInput for another model, and where the engine does not."""
    if pipe.variant.name != "flux2-klein":
        raise BadInput(f"--flux2-klein-kv: {pipe.variant.title} is no FLUX.2 klein; leave it out")
    if "cached_references" in convention.row(pipe.variant.params):
        raise BadInput(f"--flux2-klein-kv: {convention.name} runs these weights as klein's: say --like diffusers")
    return _with_param(pipe, "cached_references")


def _with_param(pipe: Pipeline, name: str) -> Pipeline:
    denoiser = pipe.denoiser._replace(params={**pipe.denoiser.params, name: True})
    return pipe._replace(denoiser=denoiser)
