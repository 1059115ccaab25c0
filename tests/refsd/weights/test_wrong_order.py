"""A GGUF whose dimensions are stored outermost first is named as such, and never read as if it were right."""

import numpy as np
import pytest
import small_families as small

from refsd.numerics.errors import BadInput
from refsd.weights import detect, open_checkpoint

SAID = r"a\.gguf: its dimensions are stored in the wrong order \(outermost first\): GGUF stores the innermost first"


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


@pytest.mark.parametrize(
    "family",
    [
        "sd15",
        "sdxl",
        "zimage",
        "lumina2",
        "krea2",
        "ernie-image",
        "ideogram4",
        "minimax-h3",
        "ltx2",
        "qwen-image",
        "qwen-image21",
        "flux-dev",
        "sd3",
        "chroma",
        "flux2-dev",
        "flux3",
        "vae",
    ],
)
@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_denoiser_of_reversed_dimensions(tmp_path, family, layout):
    ((component, size),) = small.FAMILIES[family].items()
    arrays = small.written(component, layout, size, small.weights(component, size))
    right = open_checkpoint(small.save_gguf(tmp_path / "right.gguf", arrays))
    assert component in right.components
    with pytest.raises(BadInput, match=SAID):
        open_checkpoint(small.save_gguf(tmp_path / "a.gguf", arrays, turned=True))


@pytest.mark.parametrize(
    "family", ["clip-l", "clip-g", "t5xxl", "qwen3", "qwen2.5-vl", "mistral", "gemma2", "controlnet", "esrgan"]
)
def test_a_side_model_of_reversed_dimensions(tmp_path, family):
    ((component, size),) = small.FAMILIES[family].items()
    layouts = [layout for of, layout in small.KEYMAPS if of == component and layout in ("llama.cpp", "openclip")]
    for layout in [*layouts, "original"]:
        arrays = small.written(component, layout, size, small.weights(component, size))
        with pytest.raises(BadInput, match=SAID):
            open_checkpoint(small.save_gguf(tmp_path / "a.gguf", arrays, turned=True))


def test_all_in_one(tmp_path):
    """The first component that speaks for it is enough; two text encoders are no ambiguity."""
    prefixes = {"unet": "model.diffusion_model.", "clip": "conditioner.embedders.0.transformer."}
    prefixes["clip_g"] = "conditioner.embedders.1.model."
    sizes = {"unet": small.FAMILIES["sdxl"]["unet"]}
    sizes |= {"clip": small.FAMILIES["clip-l"]["clip"], "clip_g": small.FAMILIES["clip-g"]["clip_g"]}
    arrays = {}
    for component, prefix in prefixes.items():
        layout = "openclip" if component == "clip_g" else "ldm"
        of = small.written(component, layout, sizes[component], small.weights(component, sizes[component]))
        arrays |= {prefix + name: array for name, array in of.items()}
    assert open_checkpoint(small.save_gguf(tmp_path / "b.gguf", arrays)).components.keys() == sizes.keys()
    with pytest.raises(BadInput, match=SAID):
        open_checkpoint(small.save_gguf(tmp_path / "a.gguf", arrays, turned=True))


def test_a_file_that_fits_neither_way_is_told_as_it_is(tmp_path):
    size = small.FAMILIES["zimage"]["zimage"]
    arrays = small.weights("zimage", size)
    arrays["layers.0.ffn_norm1.weight"] = np.ones(3, np.float32)
    with pytest.raises(BadInput, match=r'1 misshapen: zimage "layers.0.ffn_norm1.weight" \[3\] for \[128\]'):
        open_checkpoint(small.save_gguf(tmp_path / "a.gguf", arrays))


def test_rows_that_hold_no_whole_blocks_may_be_columns(tmp_path):
    """Packed types: the row length gives it away, before any table is asked."""
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "test")
    writer.add_tensor_info("x.weight", (64, 34 * 2), np.dtype(np.uint8), 64 * 68, gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.write_tensor_data(np.zeros(64 * 68, np.uint8))
    writer.close()
    raw = (tmp_path / "a.gguf").read_bytes()
    sizes = (64).to_bytes(8, "little") * 2
    assert raw.count(sizes) == 1
    turned = (33).to_bytes(8, "little") + (64).to_bytes(8, "little")
    (tmp_path / "a.gguf").write_bytes(raw.replace(sizes, turned))
    with pytest.raises(BadInput, match=r"rows of 33 elements; q8_0 needs .* wrong order \(outermost first\)\?"):
        open_checkpoint(tmp_path / "a.gguf")
