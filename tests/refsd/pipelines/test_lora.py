"""refsd txt2img --lora: both the text encoder and the UNet take it, and the picture says so."""

import numpy as np
import pytest
import tiny_adapters
from PIL import Image
from typer.testing import CliRunner

from refsd.cli import app
from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.jitted  # whole models

QUICK = ["--steps", "1", "-W", "64", "-H", "64", "--sampling-method", "euler", "--cfg-scale", "1"]


def call(*args):
    result = CliRunner().invoke(app, ["txt2img", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_txt2img(tiny, tmp_path):
    parts = open_checkpoint(tiny).components
    layers = {
        "unet": ("diffusion_model.", "middle_block.1.transformer_blocks.0.attn2.to_k"),
        "clip": ("text_encoder.", "text_model.encoder.layers.0.mlp.fc1"),
    }
    seen = {}
    for name, held in {"plain": (), "clip": ("clip",), "unet": ("unet",), "both": ("clip", "unet")}.items():
        tensors = {}
        for part in held:
            prefix, key = layers[part]
            made = tiny_adapters.parts("lokr", parts[part].weights.shapes[f"{key}.weight"], 1)
            tensors |= {f"{prefix}{key}.{leaf}": array for leaf, array in made.items()}
        out, taps = tmp_path / f"{name}.png", tmp_path / f"{name}.safetensors"
        options = ["-m", tiny, "-p", "a cat", "-o", out, *QUICK, "--taps", taps]
        if tensors:
            tiny_adapters.save(tmp_path / "a.safetensors", tensors)
            options += ["--lora", f"{tmp_path / 'a.safetensors'}:0.5"]
        assert call(*options).exit_code == 0
        with Image.open(out) as png:
            assert ("Lora: a.safetensors:0.5" in png.text["parameters"]) == bool(tensors)
        seen[name] = {tap: open_weights(taps)[tap].values() for tap in ("cond", "0.latent")}
    same = {name: np.array_equal(taps["cond"], seen["plain"]["cond"]) for name, taps in seen.items()}
    assert same == {"plain": True, "clip": False, "unet": True, "both": False}
    latents = [taps["0.latent"] for taps in seen.values()]
    assert all(not np.allclose(a, b) for i, a in enumerate(latents) for b in latents[:i])


def test_what_is_wrong_is_said_before_anything_is_computed(tiny, tmp_path):
    tiny_adapters.save(tmp_path / "a.safetensors", {"lora_unet_nowhere.alpha": np.float32(1)})
    for lora, said in (
        (tmp_path / "a.safetensors", "lora_unet_nowhere.alpha"),
        (tmp_path / "none.safetensors", "none.safetensors"),
        (f"{tmp_path / 'a.safetensors'}:much", "expected FILE or FILE:STRENGTH"),
    ):
        with pytest.raises(BadInput, match=said):
            call("-m", tiny, "-p", "a", "-o", tmp_path / "a.png", *QUICK, "--lora", lora)
    assert not (tmp_path / "a.png").exists()
