"""Latents as the autoencoder has them, and as its family's denoiser does."""

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.components import forward
from refsd.models.vae.latents import LATENT_SCALES
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.weights.checkpoint import survey
from refsd.weights.describe import describe

pytestmark = pytest.mark.jitted

RNG = np.random.default_rng(3)


def module(family):
    ((component, size),) = small.FAMILIES[family].items()
    return Module({n: stored(a) for n, a in small.weights(component, size).items()}, Arithmetic(FLOAT64))


@pytest.mark.parametrize(("family", "latents"), [("vae", "sdxl"), ("flux-vae", "sd3"), ("flux-vae", "flux")])
def test_latents_of_a_denoiser(family, latents):
    m, scale = module(family), LATENT_SCALES[latents]
    z = RNG.standard_normal((2, 16 if family == "flux-vae" else 4, 3, 5))
    want = forward("vae-decoder", m, {"z": z / scale.factor + scale.shift})["out"]
    np.testing.assert_allclose(forward("vae-decoder", m, {"z": z}, {"latents": latents})["out"], want, rtol=1e-12)
    x = {"x": RNG.uniform(-1, 1, (2, 3, 6, 8))}
    own, its = forward("vae-encoder", m, x), forward("vae-encoder", m, x, {"latents": latents})
    np.testing.assert_allclose(its["mean"], (own["mean"] - scale.shift) * scale.factor, rtol=1e-12)
    np.testing.assert_allclose(np.exp(its["logvar"] / 2), np.exp(own["logvar"] / 2) * scale.factor, rtol=1e-12)


def test_another_family_is_one_line():
    with pytest.raises(BadInput, match=r"latents is 'sd9'; expected own or sd1, sd2, sdxl, "):
        forward("vae-decoder", module("vae"), {"z": np.zeros((1, 4, 2, 2))}, {"latents": "sd9"})


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("vae", "by family: sd1 (z - 0) * 0.18215, sd2 (z - 0) * 0.18215, sdxl (z - 0) * 0.13025: --param"),
        ("flux-vae", "by family: sd3 (z - 0.0609) * 1.5305, flux (z - 0.1159) * 0.3611, "),
        ("flux2-vae", "nothing to scale"),
        ("taesd", "nothing to scale"),
        ("sd15", None),
    ],
)
def test_a_file_says_what_it_knows(tmp_path, family, says):
    ((component, size),) = small.FAMILIES[family].items()
    save_file(small.weights(component, size), tmp_path / "a.safetensors")
    found = describe(survey(tmp_path / "a.safetensors"))["latents"]
    assert found is None if says is None else says in found


def test_a_family_or_a_config_tells_more(tmp_path):
    arrays = {
        f"model.diffusion_model.{n}": a for n, a in small.weights("unet", small.FAMILIES["sd2"]["unet"]).items()
    }
    arrays |= {f"first_stage_model.{n}": a for n, a in small.weights("vae", small.FAMILIES["vae"]["vae"]).items()}
    save_file(arrays, tmp_path / "a.safetensors")
    assert "has (z - 0) * 0.18215" in describe(survey(tmp_path / "a.safetensors"))["latents"]
