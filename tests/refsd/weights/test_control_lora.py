"""Control-LoRA: merged with its UNet as ComfyUI adds up and down; read as a ControlNet; files that do not fit."""

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import ControlNetSize, controlnet_shapes
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint
from refsd.weights.checkpoint import survey
from refsd.weights.describe import describe

TRUNK = ("time_embed.", "label_emb.", "input_blocks.", "middle_block.")
SIZE = small.FAMILIES["sdxl"]["unet"]
MARK = {"lora_controlnet": np.zeros(1, np.float32)}
RANK = 3


def parts(unet):
    """The tensors of a Control-LoRA, and those of the ControlNet that it makes of a UNet."""
    rng = np.random.default_rng(1)
    lora, whole = {}, {}
    for name, shape in controlnet_shapes(ControlNetSize(SIZE, hint=(2, 3, 4, 5))).items():
        draw = lambda *sizes: (rng.standard_normal(sizes) / 5).astype(np.float32)
        layer = name.removesuffix(".weight")
        if not name.startswith(TRUNK) or len(shape) == 1:
            lora[name] = whole[name] = draw(*shape)
        elif name.startswith("middle_block.1."):  # left as the UNet has it
            whole[name] = unet[name]
        else:
            up, down = draw(shape[0], RANK, *[1] * (len(shape) - 2)), draw(RANK, *shape[1:])
            lora |= {f"{layer}.up": up, f"{layer}.down": down}
            flat = up.reshape(shape[0], RANK).astype(np.float64)
            whole[name] = (unet[name] + np.einsum("or,r...->o...", flat, down.astype(np.float64))).astype(
                np.float32
            )
    return lora, whole


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("control")
    unet = {name: array.astype(np.float32) for name, array in small.weights("unet", SIZE).items()}
    save_file(small.written("unet", "ldm", SIZE, unet), folder / "unet.safetensors")
    save_file(small.written("unet", "diffusers", SIZE, unet), folder / "theirs.safetensors")
    lora, whole = parts(unet)
    save_file(lora | MARK, folder / "lora.safetensors")
    save_file({f"control_model.{name}": array for name, array in whole.items()}, folder / "whole.safetensors")
    return folder, lora, whole


@pytest.mark.parametrize("model", ["unet", "theirs"])
def test_it_is_the_controlnet_that_its_unet_and_the_products_make(files, model):
    folder, _, whole = files
    of = lambda name: open_checkpoint(
        folder / f"{model}.safetensors", {"--control-net": folder / f"{name}.safetensors"}
    )
    merged, plain = of("lora").components["controlnet"], of("whole").components["controlnet"]
    assert merged.config == plain.config and merged.size == plain.size and set(merged.weights) == set(whole)
    for name, array in whole.items():
        np.testing.assert_allclose(merged.weights[name].values(), array, rtol=1e-6, atol=1e-7)
    rng = np.random.default_rng(2)
    x, hint = rng.standard_normal((2, 4, 8, 4)), rng.uniform(size=(2, 3, 64, 32))
    context, y = rng.standard_normal((2, 5, SIZE.context_dim)), rng.standard_normal((2, SIZE.label))
    run = lambda part: controlnet(Module(part.weights), x, hint, np.array([3.0, 700.0]), context, y=y)
    for a, b in zip(run(merged), run(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_it_is_identified_alone(files):
    folder, _, _ = files
    assert describe(survey(folder / "lora.safetensors"))["family"] == "Control-LoRA"
    with pytest.raises(BadInput, match="refsd does not run Control-LoRA by itself: give it with --control-net"):
        open_checkpoint(folder / "lora.safetensors")
    with pytest.raises(BadInput, match="a Control-LoRA adds to its UNet: name the model that has it with -m"):
        open_checkpoint(None, {"--control-net": folder / "lora.safetensors"})


LAYER = "input_blocks.1.0.in_layers.2"
BROKEN = {
    "no down": ({f"{LAYER}.down": None}, r'layer "input_blocks.1.0.in_layers.2": up .* and down \[\] do not make'),
    "no up": ({f"{LAYER}.up": None}, r"up \[\] and down "),
    "other ranks": ({f"{LAYER}.up": np.zeros((16, 2, 1, 1), np.float32)}, "do not make the UNet's"),
    "up of filters": ({f"{LAYER}.up": np.zeros((16, 3, 3, 3), np.float32)}, "do not make the UNet's"),
    "a layer that is none": ({"input_blocks.1.9.up": np.zeros((2, 2), np.float32)}, "that its UNet lacks"),
    "a weight of its own": ({f"{LAYER}.weight": np.zeros((2, 2), np.float32)}, "a weight that is its own"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_refused(files, tmp_path, case):
    folder, lora, _ = files
    changed, says = BROKEN[case]
    arrays = {name: array for name, array in {**lora, **changed}.items() if array is not None}
    save_file(arrays | MARK, tmp_path / "lora.safetensors")
    with pytest.raises(BadInput, match=says):
        open_checkpoint(folder / "unet.safetensors", {"--control-net": tmp_path / "lora.safetensors"})
