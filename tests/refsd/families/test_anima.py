"""Anima's prompts: two tokenizers, weights, an empty prompt; and a picture from small weights."""

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from small_pictures import Letters, call
from typer.testing import CliRunner

from refsd.cli import app
from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.conventions.sdcpp import PICTURES as SDCPP
from refsd.families.anima import multiplied
from refsd.models.anima.network import AnimaSize
from refsd.models.anima_conditioner.network import ConditionerSize
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.vae_wan.network import WanVAESize
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.prompts import Tokenizers, encode
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.jitted
OF = Tokenizers.of
runner = CliRunner()
SIZES = {
    "anima": AnimaSize(256, 2, 128, 96, 12, 16, 24),
    "anima-conditioner": ConditionerSize(24, 2, 12, 40, 60, 40),
    "qwen3": Qwen3Size(40, 3, 4, 2, 16, 72, vocab=60),
    "wan-vae": WanVAESize(8, (8, 16, 16, 16), 1),
}


@pytest.fixture(autouse=True)
def _letters(monkeypatch):
    monkeypatch.setattr(Tokenizers, "of", lambda self, encoder: Letters())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anima")
    drawn = {name: small.weights(name, size, i) for i, (name, size) in enumerate(SIZES.items())}
    conditioner = {f"net.llm_adapter.{name}": w for name, w in drawn["anima-conditioner"].items()}
    tensors = {
        "--diffusion-model": {f"net.{name}": w for name, w in drawn["anima"].items()} | conditioner,
        "--llm": drawn["qwen3"],
        "--vae": drawn["wan-vae"],
    }
    named = {flag: folder / f"{flag[2:]}.safetensors" for flag in tensors}
    for flag, file in named.items():
        save_file(tensors[flag], file)
    return named


@pytest.fixture(scope="module")
def encoded(files):
    pipe = open_pipeline(open_checkpoint(None, files), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)

    def encoded(prompt, convention=SDCPP):
        return encode(pipe.variant, convention, pipe.encoders, Tokenizers(), prompt)

    return encoded


def test_weights_multiply_the_conditioner_s_output_alone(encoded):
    """Brackets are text in diffusers' pipeline."""
    plain, weighted = encoded("a cat"), encoded("a (cat:1.5)")
    np.testing.assert_array_equal(weighted["qwen3"].hidden, plain["qwen3"].hidden)
    ratio = weighted["anima-conditioner"].hidden[:, :6] / plain["anima-conditioner"].hidden[:, :6]
    np.testing.assert_allclose(ratio[0], np.repeat([[1], [1], [1.5], [1.5], [1.5], [1]], 24, axis=1), rtol=1e-6)
    assert encoded("a (cat:1.5)", DIFFUSERS)["qwen3"].hidden.shape[1] == len("a (cat:1.5)")


def test_padding_has_no_weight():
    np.testing.assert_array_equal(multiplied(np.ones((1, 3, 2)), np.array([2.0]))[0, :, 0], [2, 1, 1])


def test_an_empty_prompt_is_one_token_of_qwen3(encoded):
    """diffusers masks it; T5's tokens are then EOS alone."""
    masked = encoded("", DIFFUSERS)
    assert not masked["qwen3"].mask.any() and masked["qwen3"].hidden.shape == (1, 1, 40)
    seen = encoded("")
    assert seen["qwen3"].mask.all()
    out, other = masked["anima-conditioner"], seen["anima-conditioner"]
    assert out.mask.shape == (1, 1) and out.hidden.shape == (1, 512, 24)
    assert np.abs(out.hidden - other.hidden).max() > 1e-3 and not out.hidden[:, 1:].any()


@pytest.mark.parametrize("like", ["diffusers", "sdcpp"])
def test_it_draws(tmp_path, files, like):
    given = [part for flag, file in files.items() for part in (flag, file)]
    drawn = {}
    for prompt in ("a cat", "a dog"):
        out = tmp_path / f"{prompt}.png"
        result = call(*given, "-p", prompt, "-W", 32, "-H", 16, "--steps", 2, "--like", like, "-o", out)
        assert result.exit_code == 0, result.output
        drawn[prompt] = out.read_bytes()
    assert drawn["a cat"] != drawn["a dog"]


def test_a_file_without_the_conditioner_is_one_line(tmp_path, files):
    alone = tmp_path / "alone.safetensors"
    save_file(small.weights("anima", SIZES["anima"], 0), alone)
    with pytest.raises(BadInput, match=r"does not hold anima-conditioner, .* --diffusion-model"):
        open_pipeline(
            open_checkpoint(None, {**files, "--diffusion-model": alone}), Tokenizers(), Arithmetic(FLOAT64)
        )


def test_one_file_is_not_read_as_two_tokenizers(tmp_path, monkeypatch):
    monkeypatch.setattr(Tokenizers, "of", OF)
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    for place, said in (
        (file, "one file, where qwen3 and anima-conditioner have different"),
        (tmp_path, "no token"),
    ):
        tokenizers = Tokenizers(tokenizer=place)
        monkeypatch.setattr(tokenizers, "_open", {"qwen3": Letters()})
        with pytest.raises(BadInput, match=said):
            tokenizers.of(LoadedComponent("anima-conditioner", Module({}), {}))


def test_diffusers_has_its_own_eps_of_queries_and_keys(files):
    pipe = open_pipeline(open_checkpoint(None, files), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
    assert pipe.denoiser_of(DIFFUSERS).params["qk_eps"] == 1e-5
    assert "qk_eps" not in pipe.denoiser_of(SDCPP).params


def test_recipe_weights_draw(tmp_path):
    """One file has the transformer and the conditioner, as Anima's own."""
    recipes = {"--diffusion-model": "anima", "--llm": "qwen3-0.6b", "--vae": "wan-vae"}
    given = []
    for flag, recipe in recipes.items():
        file = tmp_path / f"{recipe}.safetensors"
        made = runner.invoke(app, ["weights", "make", recipe, "--tiny", "-o", str(file)])
        assert made.exit_code == 0, made.output
        given += [flag, file]
    out = tmp_path / "a.png"
    result = call(*given, "-p", "a cat", "-W", 32, "-H", 16, "--steps", 1, "-o", out)
    assert result.exit_code == 0 and out.is_file()
