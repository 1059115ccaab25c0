"""`refsd forward` speaks one language for every family; what it answers is what the model's page answers."""

from functools import partial

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.components import ALIASES, COMPONENTS, forward, load
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_gguf, write_safetensors
from refsd.models import (
    anima,
    anima_conditioner,
    chroma,
    chroma_radiance,
    clip,
    controlnet,
    ernie_image,
    esrgan,
    flux,
    flux2,
    flux3,
    gemma2,
    ideogram4,
    ip_adapter,
    krea2,
    ltx2,
    lumina2,
    minimax_h3,
    mistral,
    mmdit,
    qwen3,
    qwen3_vision,
    qwen_image,
    qwen_image21,
    qwen_vision,
    qwen_vl,
    redux,
    t5,
    taesd,
    unet,
    vae,
    vae_flux2,
    vae_ltx2,
    vae_minimax_h3,
    vae_qwen_image21,
    vae_wan,
    vision,
    wan,
    zimage,
)
from refsd.models.vae_minimax_h3 import network as minimax_h3_vae
from refsd.models.vae_qwen_image21 import network as qwen_image21_vae
from refsd.models.vae_wan.latents import LATENTS_MEAN, LATENTS_STD, WAN22_LATENTS_MEAN, WAN22_LATENTS_STD
from refsd.module import Module
from refsd.networks.component import IDS, MASK, POSITION
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored
from refsd.weights import detect, open_checkpoint

pytestmark = pytest.mark.jitted

SIZES = {"N": 2, "J": 5, "L": 7, "H": 8, "W": 12, "h": 4, "w": 6, "A": 6}
SIZES |= {"p": 1, "q": 3, "r": 2, "s": 1, "t": 1, "u": 2}  # of further references
THOUSANDS = ("unet", "mmdit", "wan", "ltx2", "controlnet")  # the components whose timesteps count to 1000
EOS = 49  # the last of the small vocabularies
IMAGE = 7  # id of a token that stands for a part of a picture

QWEN_IMAGE21 = {
    "latents_mean": qwen_image21_vae.LATENTS_MEAN,
    "latents_std": qwen_image21_vae.LATENTS_STD,
}
MINIMAX_H3 = {"latents_mean": minimax_h3_vae.LATENTS_MEAN, "latents_std": minimax_h3_vae.LATENTS_STD}
WAN22 = {"latents_mean": WAN22_LATENTS_MEAN, "latents_std": WAN22_LATENTS_STD}
PAGES = {
    "unet": unet.unet,
    "controlnet": lambda m, **given: {f"control.{i}": y for i, y in enumerate(controlnet.controlnet(m, **given))},
    "mmdit": mmdit.mmdit,
    "flux": flux.flux,
    "chroma": chroma.chroma,
    "chroma-radiance": chroma_radiance.chroma_radiance,
    "flux2": lambda m, reference, reference_2, reference_3, reference_4, **given: flux2.flux2(
        m, **given, reference=[reference, reference_2, reference_3, reference_4]
    ),
    "qwen-image": lambda m, reference, reference_2, reference_3, reference_4, **given: qwen_image.qwen_image(
        m, **given, reference=[reference, reference_2, reference_3, reference_4]
    ),
    "qwen-image-layered": qwen_image.qwen_image_layered,
    "zimage": lambda m, context_mask, **given: zimage.zimage(m, **given, lengths=context_mask.sum(axis=1)),
    "lumina2": lambda m, context_mask, **given: lumina2.lumina2(m, **given, lengths=context_mask.sum(axis=1)),
    "flux3": lambda m, reference, reference_2, reference_3, reference_4, **given: flux3.flux3(
        m, **given, reference=[reference, reference_2, reference_3, reference_4]
    ),
    "krea2": krea2.krea2,
    "minimax-h3": minimax_h3.minimax_h3,
    "ltx2": ltx2.ltx2,
    "ernie-image": lambda m, context_mask, **given: ernie_image.ernie_image(
        m, **given, lengths=context_mask.sum(axis=1)
    ),
    "ideogram4": ideogram4.ideogram4,
    "anima": anima.anima,
    "anima-conditioner": anima_conditioner.anima_conditioner,
    "qwen-image21": lambda m, reference, reference_2, reference_3, reference_4, **given: qwen_image21.qwen_image21(
        m, **given, reference=[reference, reference_2, reference_3, reference_4]
    ),
    "wan": wan.wan,
    "vae-encoder": vae.encode,
    "vae-decoder": vae.decode,
    "wan-vae-encoder": partial(vae_wan.encode, latents_mean=LATENTS_MEAN, latents_std=LATENTS_STD),
    "wan-vae-decoder": partial(vae_wan.decode, latents_mean=LATENTS_MEAN, latents_std=LATENTS_STD),
    "wan22-vae-encoder": partial(vae_wan.encode_wan22, **WAN22),
    "wan22-vae-decoder": partial(vae_wan.decode_wan22, **WAN22),
    "minimax-h3-vae-encoder": partial(vae_minimax_h3.encode, **MINIMAX_H3),
    "minimax-h3-vae-decoder": partial(vae_minimax_h3.decode, **MINIMAX_H3),
    "ltx2-vae-encoder": vae_ltx2.encode,
    "ltx2-vae-decoder": vae_ltx2.decode,
    "qwen-image21-vae-encoder": partial(vae_qwen_image21.encode, **QWEN_IMAGE21),
    "qwen-image21-vae-decoder": partial(vae_qwen_image21.decode, **QWEN_IMAGE21),
    "flux2-vae-encoder": vae_flux2.encode,
    "flux2-vae-decoder": vae_flux2.decode,
    "tae-encoder": lambda m, x: taesd.encode(m["encoder"], x),
    "tae-decoder": lambda m, z: taesd.decode(m["decoder"], z),
    "clip": clip.clip_text,
    "clip_g": lambda m, **given: clip.clip_text_with_projection(m, **given, clip_skip=1, final_norm=True),
    "t5": t5.t5_encoder,
    "qwen3": lambda m, **given: _last_two(qwen3.qwen3(m, **given)),
    "qwen2_5_vl": lambda m, **given: _last_two(qwen_vl.qwen2_5_vl(m, **given)),
    "qwen3_vl": lambda m, **given: _last_two(qwen_vl.qwen3_vl(m, **given)),
    "mistral": lambda m, **given: _last_two(mistral.mistral(m, **given)),
    "gemma2": lambda m, **given: _last_two(gemma2.gemma2(m, **given)),
    "esrgan": esrgan.rrdbnet,
    "clip-vision": vision.clip_vision,
    "siglip": vision.siglip_vision,
    "qwen3_vision": qwen3_vision.qwen3_vision,
    "qwen2_5_vision": qwen_vision.qwen2_5_vision,
    "redux": redux.redux,
    "ip-adapter": lambda m, embeds=None, penultimate=None: ip_adapter.image_prompt(
        m, penultimate if embeds is None else embeds
    ),
}
# What a page returns in another order than `forward` names it.
ORDER = {
    "clip": ("last_hidden_state", "penultimate", "pooled"),
    "clip_g": ("last_hidden_state", "penultimate", "pooled"),
}


def _last_two(hidden_states):
    return hidden_states[-1], hidden_states[-2]


CASES = [
    (family, name)
    for family, parts in small.FAMILIES.items()
    for name, component in COMPONENTS.items()
    if component.part in parts
]


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


def inputs_for(name, m):
    """Every argument that these weights have a use for, of sizes that fit, each item different."""
    component = COMPONENTS[name]
    fits = component.fits(m)
    rng = np.random.default_rng(7)
    sizes = {"J": 15} if name == "qwen-image21" else {}
    given = {}
    for argument, wanted in component.arguments.items():
        if wanted.optional and argument == "hint":
            continue
        if wanted.optional and argument in fits and not fits[argument].holds(1):
            continue
        shape = tuple(_size(letter, fits, sizes) for letter in wanted.shape.split())
        if wanted.kind is IDS:
            given[argument] = rng.integers(0, fits["V"].n, shape)
            given[argument][:, -2] = EOS
        elif wanted.kind is MASK:
            given[argument] = (np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 2]])).astype(np.int64)
        elif argument == "positions":
            given[argument] = rng.integers(0, 40, shape).astype(np.float64)
        elif wanted.kind is POSITION:
            given[argument] = np.resize([0.8, 0.3], shape) * (1000 if name in THOUSANDS else 1)
        else:
            given[argument] = rng.standard_normal(shape)
    if "pictures" in given:
        ids, count = given["input_ids"], len(given["pictures"])
        ids[ids == IMAGE] = IMAGE + 1
        ids[0, :count] = IMAGE
    return given


def _size(letter, fits, sizes):
    digits = "".join(c for c in letter if c.isdigit())
    name = letter[len(digits) :]
    if not name:
        return int(digits)
    if name not in sizes:
        usual = SIZES.get(name, 3)
        holds = fits[name].holds if name in fits else lambda n: True
        exact = fits[name].n if name in fits else usual
        sizes[name] = next(n for n in (usual, 2 * usual, exact, *range(1, 100)) if holds(n))
    return int(digits or 1) * sizes[name]


def params_for(name):
    if name in ("qwen2_5_vl", "qwen3_vl"):
        return {"image_token": IMAGE}
    if name == "qwen-image21":
        return {"places": [1, 8, 12, 13]}
    return {"eos": EOS} if name in ("clip", "clip_g") else {}


def _said(value):
    """A param's value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def kept(path, family):
    ((component, size),) = small.FAMILIES[family].items()
    save_file(small.weights(component, size), path)
    return path


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_command_answers_as_the_page(tmp_path, family, name):
    checkpoint = open_checkpoint(kept(tmp_path / "model.safetensors", family))
    m, params = load(checkpoint, name, Arithmetic(FLOAT64))
    given = inputs_for(name, m)
    kinds = {argument: wanted.kind for argument, wanted in COMPONENTS[name].arguments.items()}
    bools = {argument: x != 0 for argument, x in given.items() if kinds[argument] is MASK}
    save_file(given | bools, tmp_path / "in.safetensors")
    alias = next((alias for alias, of in ALIASES.items() if name in of and alias not in COMPONENTS), name)
    arguments = ["forward", tmp_path / "model.safetensors", "--component", alias, "-i", tmp_path / "in.safetensors"]
    arguments += ["-o", tmp_path / "out.safetensors", "--numerics", "float64"]
    arguments += [
        word for param, value in params_for(name).items() for word in ("--param", f"{param}={_said(value)}")
    ]
    result = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    out = open_weights(tmp_path / "out.safetensors")

    want = PAGES[name](m, **given, **params, **params_for(name))
    if not isinstance(want, dict):
        component = COMPONENTS[name]
        named = ORDER.get(name, tuple(component.outputs))
        want = dict(zip(named, want if isinstance(want, tuple) else (want,), strict=True))
    assert want.keys() <= set(out) <= want.keys() | {"context"}
    for output, y in want.items():
        assert np.abs(y).max() > 1e-3 and np.isfinite(y).all()
        np.testing.assert_allclose(out[output].values(), y, rtol=1e-10, atol=1e-12 * np.abs(y).max())
        assert not np.array_equal(y[0], y[1])


@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_is_missing_or_of_no_use_is_one_line(tmp_path, family, name):
    m, params = load(open_checkpoint(kept(tmp_path / "model.safetensors", family)), name, Arithmetic(FLOAT64))
    given, params = inputs_for(name, m), params | params_for(name)
    for gone in given:
        left = {argument: x for argument, x in given.items() if argument != gone}
        wanted = COMPONENTS[name].arguments[gone]
        needed = COMPONENTS[name].fits(m).get(gone)
        if wanted.optional and (needed is None or needed.holds(0)):
            continue
        with pytest.raises(BadInput) as told:
            forward(name, m, left, params)
        assert gone in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(BadInput, match="name the tensors so"):
        forward(name, m, given | {"another": np.zeros(3)}, params)
    for argument, wanted in COMPONENTS[name].arguments.items():
        if wanted.optional and argument not in given:
            shape = tuple(_size(letter, COMPONENTS[name].fits(m), {}) for letter in wanted.shape.split())
            with pytest.raises(BadInput, match=rf"tensor {argument} \[.*\] is of no use: "):
                forward(name, m, given | {argument: np.zeros(shape)}, params)
    for argument, x in given.items():
        for wrong in (x[..., :0], x[None], np.full(x.shape, np.nan), np.full(x.shape, 2**40)):
            if wrong.dtype.kind == "i" and x.dtype.kind == "f":
                continue
            with pytest.raises(BadInput) as told:
                forward(name, m, given | {argument: wrong}, params)
            assert argument in str(told.value) and "\n" not in str(told.value)


LOSSLESS = (
    "sd15",
    "sdxl",
    "sd35-medium",
    "flux-dev",
    "chroma",
    "flux2-klein",
    "flux3-distilled",
    "zimage",
    "qwen-image",
    "krea2",
    "ernie-image",
    "ideogram4",
    "minimax-h3",
    "ltx2",
    "qwen-image21",
    "flux-vae",
    "t5xxl",
    "qwen3",
)


@pytest.mark.parametrize("type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("family", LOSSLESS)
def test_a_gguf_and_a_safetensors_of_the_same_weights_answer_bit_by_bit_the_same(tmp_path, family, type):
    ((component, size),) = small.FAMILIES[family].items()
    arrays = small.weights(component, size)
    tensors = {n: StoredTensor(type, a.shape, a.astype(SCALAR_TYPES[type])) for n, a in arrays.items()}
    specs = {n: Spec(t.type, t.shape) for n, t in tensors.items()}
    write_safetensors(tmp_path / "a.safetensors", specs, tensors.values())
    write_gguf(tmp_path / "a.gguf", specs, tensors.values(), "test")
    for name in (name for of, name in CASES if of == family):
        for numerics in (FLOAT64, FLOAT32):
            answers = []
            for file in ("a.safetensors", "a.gguf"):
                m, params = load(open_checkpoint(tmp_path / file), name, Arithmetic(numerics))
                answers.append(forward(name, m, inputs_for(name, m), params | params_for(name), also=True))
            assert answers[0].keys() == answers[1].keys()
            for output, y in answers[0].items():
                assert y.tobytes() == answers[1][output].tobytes(), output


def test_every_component_is_tried():
    assert {name for _, name in CASES} == {name for name, of in COMPONENTS.items() if of.part is not None}
    assert PAGES.keys() == {name for _, name in CASES}


def test_heads_that_the_positions_do_not_fill_are_refused():
    """Chroma-Radiance with 64 channels a head: every shape fits, and no page could run it."""
    ((component, size),) = small.FAMILIES["chroma-radiance"].items()
    arrays = small.weights(component, size._replace(chroma=size.chroma._replace(head_dim=64)))
    m = Module({name: stored(array) for name, array in arrays.items()}, Arithmetic(FLOAT64))
    with pytest.raises(BadInput, match="refsd computes whole heads of 128 channels"):
        COMPONENTS[component].fits(m)


@pytest.mark.parametrize(
    "family", ["flux-dev", "chroma", "flux2-klein", "flux3", "qwen-image", "krea2", "ernie-image", "qwen-image21"]
)
def test_axes_that_do_not_fill_the_heads_are_refused(family):
    """Norms show the width of a head; its axes share it."""
    ((component, size),) = small.FAMILIES[family].items()
    m = Module(
        {name: stored(array) for name, array in small.weights(component, size._replace(head_dim=64)).items()}
    )
    usual, fit = COMPONENTS[component].params["axes_dim"], COMPONENTS[component].fits(m)["axes_dim"]
    more = [16] * (len(usual) - 3)
    assert fit.holds([8, 28, 28 - sum(more), *more]) and "and is 64, the norms' width" in fit.says
    for axes in (usual, [9, 27, 28 - sum(more), *more], [32, 32], [64, 0, 0, *more], (8, 28, 28), 64):
        assert not fit.holds(axes)


@pytest.mark.parametrize("name", ["img_in.weight", "final_layer.linear.weight"])
def test_tokens_that_are_no_squares_are_refused(name):
    arrays = small.weights("flux", small.FAMILIES["flux-dev"]["flux"])
    arrays[name] = arrays[name][:, :-1] if name == "img_in.weight" else arrays[name][:-1]
    m = Module({name: stored(array) for name, array in arrays.items()}, Arithmetic(FLOAT64))
    with pytest.raises(BadInput, match="tokens of 4 pixels are expected"):
        COMPONENTS["flux"].fits(m)
