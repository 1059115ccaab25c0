"""sd-cli's tiles and circular, looked into. REFSD_SD_CLI names one that is built with shared ggml libraries.

The tap sees each tile go in and come out, and the picture is all of them blended: so where tiles lie and what
they weigh is checked to the bit of the picture, apart from how the decoder rounds.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refsd.circular import CircularAxes
from refsd.components import forward, load
from refsd.engines.sdcpp.program import Program
from refsd.golden.case import ModelRecipe
from refsd.models.vae_tiling import ENCODE_FACTOR, Tiling, tiled_sdcpp
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import PROFILES
from refsd.pipelines.png import to_bytes
from refsd.pipelines.settings import read_tiling
from refsd.weights import open_checkpoint
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

CHANNELS = {"decoder": 3, "unet": 4, "encoder": 8}

# Flags, width and height in pixels, which edges meet.
CASES = {
    "even": (["--vae-tile-size", "4"], (64, 64), CircularAxes()),
    "uneven": (["--vae-tile-size", "6x5", "--vae-tile-overlap", "0.25"], (64, 128), CircularAxes()),
    "relative": (["--vae-relative-tile-size", "0.7x3"], (64, 128), CircularAxes()),
    "no overlap": (["--vae-tile-size", "4x8", "--vae-tile-overlap", "0"], (64, 64), CircularAxes()),
    "around": (["--vae-tile-size", "4x8", "--circular"], (64, 64), CircularAxes(True, True)),
    "around, not a multiple": (["--vae-tile-size", "6", "--circularx"], (64, 64), CircularAxes(x=True)),
}


@pytest.fixture(scope="module")
def program():
    return Program(Path(os.environ["REFSD_SD_CLI"]))


@pytest.fixture(scope="module")
def model():
    return model_files(ModelRecipe("sd15", "f16"), "ldm")


def run(program, model, tmp_path, size, flags):
    """The graphs of each of its parts, by the channels of what they give, and the picture."""
    out = tmp_path / "out.png"
    args = ["-m", model, "-p", "a cat", "-W", size[0], "-H", size[1], "--steps", 1, "--cfg-scale", 1, "-s", 3]
    graphs = program.run_tapped([*map(str, [*args, *flags, "-o", out])]).graphs
    return {part: [g for g in graphs if len(g.output) == n] for part, n in CHANNELS.items()}, np.asarray(
        Image.open(out)
    )


def image(graph, channels):
    """The input of so many channels."""
    return next(x for x in graph.inputs if x.ndim == 3 and len(x) == channels)[None]


@pytest.fixture(scope="module")
def whole(program, model, tmp_path_factory):
    """(width, height), flags -> the graphs of an untiled run."""
    answers = {}

    def ask(size, flags=()):
        if (size, flags) not in answers:
            graphs, _ = run(program, model, tmp_path_factory.mktemp("whole"), size, flags)
            answers[size, flags] = graphs
        return answers[size, flags]

    return ask


@pytest.mark.parametrize("name", CASES)
def test_where_tiles_lie_and_what_they_weigh(program, model, whole, tmp_path, name):
    flags, size, circular = CASES[name]
    options = dict(zip(flags[::2], flags[1::2], strict=False))
    overlap = float(options.get("--vae-tile-overlap", 0.5))
    tiling = read_tiling(options.get("--vae-tile-size"), options.get("--vae-relative-tile-size"), overlap)
    (at_once,) = whole(size, tuple(flag for flag in flags if flag.startswith("--circ")))["decoder"]
    z = image(at_once, 4)
    graphs, png = run(program, model, tmp_path, size, ["--vae-tiling", *flags])
    seen = iter(graphs["decoder"])

    def replay(tile):
        graph = next(seen)
        np.testing.assert_array_equal(image(graph, 4), tile)
        return graph.output[None]

    _, between = tiling.circular(circular, *z.shape[2:])
    blended = tiled_sdcpp(replay, z, tiling.sizes(*z.shape[2:]), tiling.target(), up=8, wraps=between)
    assert next(seen, None) is None
    assert len(graphs["decoder"]) > 1
    off = np.abs(to_bytes(blended).astype(int) - png)
    assert off.max() <= 1 and (off > 0).mean() <= 1e-4, "a rounding's worth of float32 weights"


def ours(model, part, inputs, circular=None):
    """What the reference gives for the inputs of a graph, under ggml's numerics and what it declares."""
    deviations = [DEVIATIONS["sdcpp/group-norm-eps"], DEVIATIONS["sdcpp/gelu-tanh"]]
    m, params = load(open_checkpoint(model), part, Arithmetic(PROFILES["ggml-cpu"], deviations))
    m.circular = circular or CircularAxes()
    return np.concatenate([*forward(part, m, inputs, params).values()], axis=1)


def distance(got, graph):
    return np.linalg.norm(got - graph.output) / np.linalg.norm(graph.output)


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "in.png"
    Image.fromarray(np.random.default_rng(4).integers(0, 256, (64, 128, 3), np.uint8)).save(path)
    return path


@pytest.mark.parametrize(
    ("flags", "circular"),
    [
        ((), CircularAxes()),
        (("--circular",), CircularAxes(True, True)),
        (("--circularx",), CircularAxes(x=True)),
        (("--circulary",), CircularAxes(y=True)),
    ],
)
def test_circular(program, model, tmp_path, picture, flags, circular):
    """Encoder, UNet and decoder of an img2img: near with the same edges meeting, far with others."""
    graphs, _ = run(program, model, tmp_path, (128, 64), [*flags, "-i", picture, "--strength", 0.99])
    (encoder,), unet, (decoder,) = graphs["encoder"], graphs["unet"][0], graphs["decoder"]
    time, context = (next(x for x in unet.inputs if x.ndim == n) for n in (1, 2))
    asks = {
        "vae-encoder": (encoder, {"x": image(encoder, 3)}),
        "unet": (unet, {"x": image(unet, 4), "timesteps": time, "context": context[None]}),
        "vae-decoder": (decoder, {"z": image(decoder, 4)}),
    }
    others = {CircularAxes(), CircularAxes(True, True), CircularAxes(x=True)} - {circular}
    for part, (graph, inputs) in asks.items():
        near = distance(ours(model, part, inputs, circular), graph)
        far = min(distance(ours(model, part, inputs, other), graph) for other in others)
        assert near <= 1e-2 and near <= far / 10, part
    if circular.x or circular.y:
        zeros = ours(model, "vae-encoder", asks["vae-encoder"][1], circular._replace(one_sided=False))
        assert distance(zeros, encoder) >= 5 * near, "where torch leaves the encoder's one-sided zeros"


def test_the_encoders_tiles_are_larger(program, model, tmp_path, picture):
    """Where they lie: by the factor of this version, int(4 * 1.30539) = 5 latent pixels."""
    flags = ["-i", picture, "--strength", 0.99]
    (at_once,) = run(program, model, tmp_path, (128, 64), flags)[0]["encoder"]
    graphs, _ = run(program, model, tmp_path, (128, 64), [*flags, "--vae-tiling", "--vae-tile-size", 4])
    seen = iter(graphs["encoder"])

    def replay(tile):
        graph = next(seen)
        np.testing.assert_array_equal(image(graph, 3), tile)
        return graph.output[None]

    size = Tiling(4, 4).sizes(8, 16, ENCODE_FACTOR)
    assert size == (5, 5)
    moments = tiled_sdcpp(replay, image(at_once, 3), size, down=8)
    assert next(seen, None) is None
    assert moments.shape == (1, 8, 8, 16)


def test_tiled_and_whole_are_as_near(program, model, whole, tmp_path):
    """The decoder itself: the reference in tiles is as near to sd-cli in tiles as the whole ones are."""
    (at_once,) = whole((64, 64))["decoder"]
    z = image(at_once, 4)
    graphs, _ = run(program, model, tmp_path, (64, 64), ["--vae-tiling", "--vae-tile-size", "4"])
    theirs = iter(graphs["decoder"])
    engine = tiled_sdcpp(lambda _: next(theirs).output[None], z, (4, 4), up=8)
    reference = tiled_sdcpp(lambda tile: ours(model, "vae-decoder", {"z": tile}), z, (4, 4), up=8)
    untiled = distance(ours(model, "vae-decoder", {"z": z}), at_once)
    tiled = np.linalg.norm(reference - engine) / np.linalg.norm(engine)
    apart = distance(engine, at_once)
    assert tiled <= 2 * untiled <= 1e-2
    assert apart >= 10 * tiled
