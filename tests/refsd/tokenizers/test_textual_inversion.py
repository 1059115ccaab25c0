"""Learned embeddings: files of every trainer, names in prompts by each engine's rule, txt2img --embd-dir."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.numerics.errors import BadInput
from refsd.tokenizers.textual_inversion import (
    FIRST,
    Embedding,
    WithEmbeddings,
    behind_a_prefix,
    by_tokens,
    longest,
    read_embedding,
    rows,
    wherever,
)

_CLIP, _XL = {"clip": 4}, {"clip": 4, "clip_g": 6}


def _vectors(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


class _Letters:
    """A token a letter; blanks are none."""

    source = "letters"

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text if c != " "]


def test_files_of_every_trainer_are_read():
    two = _vectors(2, 4)
    for tensors in ({"string_to_param.*": two}, {"emb_params": two}, {"<token>": two}):
        one = read_embedding("folder/style.pt", tensors, _CLIP)
        assert (one.name, one.count) == ("style", 2)
        np.testing.assert_array_equal(one.vectors["clip"], two)
    assert read_embedding("style.pt", {"<token>": two}, _CLIP, by_token=True).name == "<token>"
    assert read_embedding("style.pt", {"emb_params": two}, _CLIP, by_token=True).name == "style"
    assert read_embedding("style.bin", {"<token>": _vectors(4)}, _CLIP).vectors["clip"].shape == (1, 4)
    both = read_embedding("style.safetensors", {"clip_g": _vectors(3, 6), "clip_l": _vectors(3, 4)}, _XL)
    assert {name: y.shape for name, y in both.vectors.items()} == {"clip": (3, 4), "clip_g": (3, 6)}


@pytest.mark.parametrize(
    ("tensors", "encoders", "says"),
    [
        ({"emb_params": _vectors(2, 5)}, _CLIP, r"style.pt: no embedding for this model \(4 for clip\)"),
        ({}, _CLIP, "it holds nothing"),
        ({"emb_params": _vectors(2, 4)}, _XL, "vectors: 2 for clip; this model's encoders"),
        ({"clip_l": _vectors(2, 4), "clip_g": _vectors(3, 6)}, _XL, "vectors: 2 for clip, 3 for clip_g"),
        ({"emb_params": _vectors(76, 4)}, _CLIP, "1 to 75 each"),
        ({"emb_params": _vectors(0, 4)}, _CLIP, "vectors: 0 for clip"),
    ],
)
def test_what_is_no_embedding_is_said_in_a_line(tensors, encoders, says):
    with pytest.raises(BadInput, match=says) as caught:
        read_embedding("style.pt", tensors, encoders)
    assert "\n" not in str(caught.value)


_NAMES = (("cat", 2), ("cat2", 1))
_A, _B = [FIRST, FIRST + 1], [FIRST + 2]


@pytest.mark.parametrize(
    ("find", "text", "ids"),
    [
        (longest, "a cat2,", [ord("a"), *_B, ord(",")]),
        (longest, "CAT", _A),
        (wherever, "a cat2", [ord("a"), *_A, ord("2")]),
        (wherever, "concat", [*map(ord, "con"), *_A]),
        (by_tokens, "a cat2 cat", [ord("a"), *_B, *_A]),
        (by_tokens, "Cat", [*map(ord, "Cat")]),
        (behind_a_prefix, "cat embedding:cat2, x", [*map(ord, "cat"), *_B, ord(","), ord("x")]),
        (behind_a_prefix, "embedding:dog a", [ord("a")]),
    ],
)
def test_names_are_found_by_each_engines_rule(find, text, ids):
    embeddings = [Embedding(name, {"clip": _vectors(count, 4)}) for name, count in _NAMES]
    assert WithEmbeddings(_Letters(), embeddings, find).encode(text) == ids
    np.testing.assert_array_equal(rows(embeddings, "clip"), np.concatenate([_vectors(2, 4), _vectors(1, 4)]))


# --- txt2img ------------------------------------------------------------------------------------------------------

_QUICK = ["--steps", "1", "-W", "64", "-H", "64", "--sampling-method", "euler", "--cfg-scale", "1"]


def _draw(model, folder, prompt, *more):
    taps = folder.parent / "taps.safetensors"
    told = ["txt2img", "-m", model, "-p", prompt, "-o", folder.parent / "cat.png", "--taps", taps, *_QUICK]
    result = CliRunner().invoke(app, [*map(str, told), "--embd-dir", str(folder), *more])
    return result, taps


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    from refsd.golden.case import ModelRecipe
    from refsd.weights import recipes

    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    recipes.make(ModelRecipe("sd15", "f16", True), path)
    return path


@pytest.mark.jitted  # a whole model
def test_txt2img_draws_with_embeddings_of_a_folder(tiny, tmp_path):
    from refsd.files.formats import open_weights
    from refsd.weights import open_checkpoint

    table = open_checkpoint(tiny).components["clip"].weights["text_model.embeddings.token_embedding.weight"]
    if table.shape[0] != FIRST:
        pytest.fail(f"the tiny model has {table.shape[0]} tokens")
    folder = tmp_path / "embeddings"
    folder.mkdir()
    # The vectors of "cat" under another name: the same picture.
    cat = 2368
    save_file({"emb_params": table.values()[[cat]].astype(np.float32)}, folder / "zorb.safetensors")
    save_file({"emb_params": _vectors(2, 5)}, folder / "other.safetensors")
    cond = {}
    for prompt in ("a cat on a mat", "a zorb on a mat", "a dog on a mat"):
        result, taps = _draw(tiny, folder, prompt, "-v")
        assert result.exit_code == 0, result.output
        cond[prompt] = open_weights(taps)["cond"].values().copy()
    assert "embedding 'zorb': 1 vector" in result.output and "left out: " in result.output
    first, same, other = cond.values()
    np.testing.assert_array_equal(same, first)
    assert not np.array_equal(other, first)


@pytest.mark.jitted  # opens a whole model
def test_a_folder_without_embeddings_is_refused(tiny, tmp_path):
    (tmp_path / "none").mkdir()
    for folder, says in (("missing", "not a folder"), ("none", "no embedding for this model")):
        result, _ = _draw(tiny, tmp_path / folder, "a cat")
        said = str(result.exception) if not isinstance(result.exception, SystemExit) else result.output
        assert result.exit_code != 0 and says in said
