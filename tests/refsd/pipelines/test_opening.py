"""What a checkpoint does not say of itself: what its UNet predicts, a folder's shift, where its words come from."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_families
import small_pictures as small
from safetensors.numpy import save_file
from small_pictures import pipeline
from tiny_tokenizers import bytes_trained

from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import prediction
from refsd.pipelines.autoencoders import open_autoencoder
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.scheduler_config import scheduler_config
from refsd.pipelines.settings import Settings
from refsd.weights import Checkpoint, open_checkpoint

pytestmark = pytest.mark.jitted  # whole models


def checkpoint(path, family="sd15", extras=(), specified=None):
    """Return what prediction_of reads of a checkpoint. specified: its metadata's modelspec.prediction_type"""
    metadata = {} if specified is None else {"modelspec.prediction_type": specified}
    unet: Any = SimpleNamespace(weights=SimpleNamespace(file=SimpleNamespace(metadata=metadata)))
    identity: Any = SimpleNamespace(name=family)
    return Checkpoint(path, identity, None, "ldm", {"unet": unet}, [], [], list(extras))


def prediction_of(held, network, flag=None):
    return prediction.prediction_of(held, scheduler_config(held), network, flag)


class Network:
    """Answers its input, less some."""

    def __init__(self, less):
        self.less = less
        self.fits = {name: SimpleNamespace(n=n) for name, n in {"C": 9, "K": 4, "H": 8, "E": 5}.items()}

    def __call__(self, inputs, source):
        assert inputs["x"].shape == (1, 9, 8, 8) and inputs["context"].shape == (1, 2, 5)
        assert inputs["timesteps"].tolist() == [999.0] and not inputs["x"][:, 4:].any()
        return {"out": inputs["x"][:, :4] - self.less}


def test_what_a_unet_predicts(tmp_path):
    file = tmp_path / "model.safetensors"
    for family, less, told in (("sd2", 1.1, "v"), ("sd2-inpaint", 0.9, "eps"), ("sd15", 1.1, "eps")):
        assert prediction_of(checkpoint(file, family), Network(less)) == told
    assert prediction_of(checkpoint(file, "sdxl", ["v_pred"]), Network(0)) == "v"
    assert prediction_of(checkpoint(file, "sdxl", ["edm_vpred.sigma_max", "v_pred"]), Network(0)) == "edm_v"
    assert prediction_of(checkpoint(file, "sd2"), Network(2), "eps") == "eps"


def test_what_the_metadata_say(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.warns(UserWarning, match=r"predicts v by its metadata \(modelspec.prediction_type\)"):
        assert prediction_of(checkpoint(file, "sdxl", specified="v"), Network(0)) == "v"
    assert prediction_of(checkpoint(file, "sd2", specified="epsilon"), Network(2)) == "eps"
    assert prediction_of(checkpoint(file, "sd2", specified="something"), Network(2)) == "v"
    assert prediction_of(checkpoint(file, "sdxl", ["edm_vpred.sigma_max"], "epsilon"), Network(0)) == "edm_v"
    assert prediction_of(checkpoint(file, "sdxl", specified="v"), Network(0), "eps") == "eps"


def test_what_a_folders_scheduler_says(tmp_path):
    (tmp_path / "scheduler").mkdir()
    config = tmp_path / "scheduler" / "scheduler_config.json"
    for said, told in (
        ({"prediction_type": "v_prediction"}, "v"),
        ({"prediction_type": "epsilon"}, "eps"),
        ({}, "eps"),
    ):
        config.write_text(json.dumps(said))
        assert prediction_of(checkpoint(tmp_path), Network(9)) == told
    for said, shift in (({"shift": 6}, 6.0), ({"shift": 3.0, "use_dynamic_shifting": True}, None), ({}, None)):
        config.write_text(json.dumps(said))
        assert scheduler_config(checkpoint(tmp_path)).shift() == shift
    for said in ({"shift": "3"}, {"shift": -1}, {"shift": 1e9}):
        config.write_text(json.dumps(said))
        assert scheduler_config(checkpoint(tmp_path)).shift() is None
    config.write_text('{"prediction_type": "sample"}')
    with pytest.raises(BadInput, match="prediction_type is 'sample'; expected epsilon or v_prediction"):
        prediction_of(checkpoint(tmp_path), Network(0))
    for text, said in (("[1]", "a JSON list, an object expected"), ("{", "not JSON")):
        config.write_text(text)
        with pytest.raises(BadInput, match=said):
            prediction_of(checkpoint(tmp_path), Network(0))
    assert scheduler_config(checkpoint(tmp_path / "nowhere")) is None


@pytest.mark.usefixtures("letters")
def test_a_shift_that_is_said(folder):
    sd3, flux = pipeline(folder, "sd3"), pipeline(folder, "flux-dev")
    assert resolve(sd3, Settings("", flow_shift=5.0)).levels.shift == 5.0
    assert resolve(sd3, Settings("")).levels.shift == 3.0
    assert resolve(flux, Settings("", flow_shift=1.15)).levels.shift == pytest.approx(np.exp(1.15))


def test_the_tokenizer_of_a_language_model(tmp_path):
    tokens, merges, _ = bytes_trained()
    part = SimpleNamespace(name="qwen3", path=tmp_path / "qwen3.safetensors")
    with pytest.raises(BadInput, match=r"no tokenizer for qwen3 \(.*carries none\): .*--tokenizer"):
        Tokenizers().of(part)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(merges))
    for tokenizers in (Tokenizers(tokenizer=folder), Tokenizers(model=tmp_path)):
        assert tokenizers.sources([part]) == [str(folder / "vocab.json")]
        assert tokenizers.of(part) is tokenizers.of(part)
    with pytest.raises(BadInput, match="no tokenizer of t5"):
        Tokenizers(model=tmp_path).of(SimpleNamespace(name="t5", path=part.path))


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(("family", "size"), [("sd15", "taesd"), ("flux2-klein", "taef2")])
def test_a_tiny_autoencoder_goes_before_the_other(folder, tmp_path, family, size):
    """0..1 there, -1..1 here; FLUX.2's latents are packed, a tiny autoencoder's are not."""
    pipe = pipeline(folder, family)
    (tae,) = small_families.FAMILIES[size].values()
    path = tmp_path / "tae.safetensors"
    names = small_families.written("tae", "diffusers", tae, small_families.weights("tae", tae))
    save_file(names, path)
    held = open_checkpoint(None, small.files(folder / family, family) | {"--taesd": path})
    channels = 4 if size == "taesd" else 128
    vae = open_autoencoder(held, Arithmetic(FLOAT64), channels)
    assert vae.tiny and vae.packed == (size == "taef2")
    x = np.random.default_rng(1).standard_normal((1, channels, 2, 3))
    z = x
    if vae.packed:
        z = x.reshape(1, 32, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 32, 4, 6)
    picture = vae.decode(x)
    assert picture.shape == (1, 3, 2 * vae.pixels, 3 * vae.pixels)
    np.testing.assert_allclose(picture, 2 * vae.decoder({"z": z}, "z")["out"] - 1, rtol=1e-12)
    back = vae.encode(picture)
    assert back.shape == x.shape
    mean = vae.encoder({"x": (picture + 1) / 2}, "x")["mean"]
    np.testing.assert_allclose(np.sort(back.ravel()), np.sort(mean.ravel()), rtol=1e-12)
    assert not pipe.autoencoder.tiny


@pytest.mark.parametrize(("family", "pixels"), [("wan-vae", 2), ("wan22-vae", 8)])
def test_an_autoencoder_of_videos_takes_a_picture_as_one_frame(tmp_path, family, pixels):
    """Wan 2.2's takes 2x2 squares of pixels besides the halvings of its encoder."""
    (size,) = small_families.FAMILIES[family].values()
    save_file(small_families.weights(family, size), tmp_path / "a.safetensors")
    vae = open_autoencoder(open_checkpoint(tmp_path / "a.safetensors"), Arithmetic(FLOAT64), size.latent_channels)
    assert vae.pixels == pixels and vae.frames and not vae.alpha
    z = vae.encode(np.random.default_rng(0).standard_normal((1, 3, 16, 24)))
    assert z.shape == (1, size.latent_channels, 16 // pixels, 24 // pixels)
    assert vae.decode(z).shape == (1, 3, 16, 24)
