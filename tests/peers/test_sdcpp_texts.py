"""sd-cli's text encoders, and how it scales an autoencoder's latents. REFSD_SD_CLI as in test_sdcpp_families.py."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import LDM_VAE_DEFAULT_SCALING_FACTOR
from diffusers.utils.remote_utils import remote_decode
from test_sdcpp_families import judged

from refsd.cases import CASES, texts
from refsd.engines.sdcpp.engine import SdcppEngine
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.stand_ins import clip_g, clip_l, mmdit
from refsd.engines.sdcpp.tap import signature
from refsd.families import LATENT_SCALES
from refsd.golden.case import ModelRecipe
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.peer

NAMES = [case.name for case in texts.CASES]
# Of 512 tokens the angles show; in other cases they are under the rounding.
DEVIATES = {"full/qwen3/klein": ("sdcpp/rope-running-angles",)}


@pytest.fixture(scope="module")
def program():
    program = Program(Path(os.environ["REFSD_SD_CLI"]))
    assert program.shares_ggml, "REFSD_SD_CLI must be built with SD_BUILD_SHARED_GGML_LIB=ON"
    return program


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("full/")) for name in NAMES]
)
def test_the_encoder_agrees(program, name):
    result = judged(SdcppEngine("sdcpp", program, model_files), CASES[name])
    assert result.status == ("deviates" if name in DEVIATES else "pass"), result.reason
    assert result.deviations == DEVIATES.get(name, ())


def denoisers(family: str, folder: Path) -> list[str]:
    """The flags of a denoiser whose latents are the family's, and of its text encoders."""
    if family == "flux":
        model = model_files(ModelRecipe("flux-schnell", "f16", tiny=True), "ldm")
        return ["--diffusion-model", str(model), "--clip_l", str(clip_l(folder))]
    encoders = ["--clip_l", str(clip_l(folder)), "--clip_g", str(clip_g(folder))]
    return ["--diffusion-model", str(mmdit(folder)), *encoders]


@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_sd_cli_scales_latents_so(program, tmp_path, family):
    """One step to sigma 0 ends at x - v; what its decoder is given of that tells the factor and the shift."""
    args = [
        *denoisers(family, tmp_path),
        "--vae",
        str(model_files(ModelRecipe("flux-vae", "f32", tiny=True), "ldm")),
    ]
    args += ["-p", "a", "-W", "64", "-H", "128", "--steps", "1", "--sampling-method", "euler", "--cfg-scale", "1"]
    latent = np.zeros((16, 16, 8), np.float32)
    graphs = program.run_tapped([*args, "-o", str(tmp_path / "out.png")], stop=(1, signature([latent]))).graphs
    (z,) = graphs[-1].inputs
    step = graphs[-2]
    (x,) = (array for array in step.inputs if array.shape == latent.shape)
    factor, shift = np.polynomial.polynomial.polyfit((x - step.output).ravel(), z.ravel(), 1)[::-1]
    ours = LATENT_SCALES[family]
    np.testing.assert_allclose([1 / factor, shift], [ours.factor, ours.shift], rtol=2e-6)


def test_diffusers_scales_latents_so():
    """What it has in its code; of other autoencoders the files' own config.json tells."""
    assert LATENT_SCALES["sd1"].factor == LDM_VAE_DEFAULT_SCALING_FACTOR == AutoencoderKL().config["scaling_factor"]
    told = re.findall(r"- (SD v1|SD XL|Flux): (0\.\d+)", remote_decode.__doc__ or "")
    named = {"SD v1": "sd1", "SD XL": "sdxl", "Flux": "flux"}
    numbers = {(named[name], float(number)) for name, number in told}
    ours = {(name, LATENT_SCALES[name].factor) for name in named.values()}
    assert numbers == ours | {("flux", LATENT_SCALES["flux"].shift)}
