"""The original's TAESD files: one half each, names that begin with a place."""

import numpy as np
import pytest
import tiny_taesd as tiny
from safetensors.numpy import load_file, save_file
from tiny_models import sampled

from refsd.components import forward, load
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights.checkpoint import open_checkpoint

RECORDED = np.load(tiny.RECORDED)
LATENT_CHANNELS = {"taesd": 4, "taef2": 32}
GIVEN, GIVES = {"encoder": "x", "decoder": "z"}, {"encoder": "z", "decoder": "x"}


def write(path, variant, half, prefix):
    weights = tiny.weights(tiny.recorded_shapes()[variant])
    mine = {name.removeprefix(f"{half}."): w for name, w in weights.items() if name.startswith(half)}
    save_file({f"{prefix}{name}": np.ascontiguousarray(w.values()) for name, w in mine.items()}, path)


@pytest.mark.jitted
@pytest.mark.parametrize("prefix", ["", "{half}.", "tae.{half}."])
@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize("variant", ["taesd", "taef2"])
def test_a_half_alone_answers_as_the_original(tmp_path, variant, half, prefix):
    path = tmp_path / "half.safetensors"
    write(path, variant, half, prefix.format(half=half))
    checkpoint = open_checkpoint(path)
    (tae,) = checkpoint.components.values()
    assert tae.size.halves == (half,)
    assert not tae.unused
    m, _ = load(checkpoint, f"tae-{half}", Arithmetic(FLOAT64))
    x = tiny.inputs(LATENT_CHANNELS[variant])[GIVEN[half]]
    (y,) = forward(f"tae-{half}", m, {GIVEN[half]: x}).values()
    want = RECORDED[f"{variant}/{GIVES[half]}"]
    assert np.linalg.norm(sampled(y) - want) <= 1e-12 * np.linalg.norm(want)


def test_what_a_half_lacks_is_named_and_the_other_half_is_not(tmp_path):
    path = tmp_path / "half.safetensors"
    write(path, "taef2", "decoder", "")
    weights = load_file(path)
    del weights["4.pool.1.bias"]
    save_file(weights, path)
    with pytest.raises(BadInput, match=r'1 missing: tae "decoder.4.pool.1.bias" \[256\]'):
        open_checkpoint(path)
