"""A damaged file either opens as what it says, or is BadInput in one line. Nothing else, and no memory taken."""

import json
import re
import struct
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given
from safetensors.numpy import save

from refsd.diagnosis.health import examine
from refsd.files.finite import not_finite
from refsd.numerics.errors import BadInput
from refsd.weights.checkpoint import open_checkpoint, problems, survey
from refsd.weights.describe import describe, list_tensors

ARRAYS = {
    "model.diffusion_model.input_blocks.0.0.weight": np.ones((32, 4, 3, 3), np.float16),
    "model.diffusion_model.input_blocks.1.0.in_layers.2.weight": np.ones((32, 1, 1, 1), np.float32),
    "model.diffusion_model.input_blocks.3.0.op.weight": np.ones((2, 2), np.float32),
    "first_stage_model.encoder.down.0.block.0.conv1.weight": np.ones((32, 2), np.float64),
    "first_stage_model.encoder.mid.attn_1.q.weight": np.ones((4, 4), np.float32),
    "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": np.ones((5, 64), np.float32),
    "alphas_cumprod": np.arange(3),
}
NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 31, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63, 2**64 - 1, 10**40]
)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "a.gguf"
    writer = GGUFWriter(path, "sd1")
    writer.add_array("words", ["a", "cat"])
    writer.add_array("numbers", list(range(40)))
    writer.add_float32("half", 0.5)
    writer.add_array("comfy.gguf.orig_shape.first_stage_model.encoder.mid.attn_1.q.weight", [4, 4, 1, 1])
    for name, array in ARRAYS.items():
        writer.add_tensor(name[:63], array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def damaged(data, content, head):
    """Up to three damages, most of them in the first `head` bytes."""
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(head, len(content) - 1) if content else 0))
        kind = data.draw(st.sampled_from(["flip", "cut", "splice", "repeat", "number", "random"]))
        if kind == "flip":
            bit = data.draw(st.integers(0, 7))
            content = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :] if content else b""
        elif kind == "cut":
            content = content[:at]
        elif kind == "splice":
            content = content[:at] + content[at + data.draw(st.integers(1, 64)) :]
        elif kind == "repeat":
            content = content[:at] + content[at : at + data.draw(st.integers(1, 64))] + content[at:]
        elif kind == "number":
            width = data.draw(st.sampled_from(["<I", "<Q"]))
            size = struct.calcsize(width)
            raw = struct.pack(width, data.draw(NUMBERS) % 2 ** (8 * size))
            content = content[:at] + raw + content[at + size :]
        else:
            content = content[:at] + data.draw(st.binary(max_size=16)) + content[at:]
    return content


def opens_or_is_refused(path):
    """Everything that refsd does with a file, up to reading all of it."""
    tracemalloc.start()
    try:
        checkpoint = survey(path)
        json.dumps(
            [describe(checkpoint), list_tensors(checkpoint), examine(checkpoint, whole=True).findings]
        ).encode()
        for component in checkpoint.components.values():
            problems(component)
            for name in component.weights:
                assert component.weights[name].values().shape == component.weights.shapes[name]
        open_checkpoint(path)
    except BadInput as error:
        assert str(error).startswith(str(path))
        assert str(error).isprintable()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**24


@given(data=st.data())
def test_safetensors(place, data):
    content = save(ARRAYS, {"made": "here"})
    path = place / "a.safetensors"
    path.write_bytes(damaged(data, content, 8 + int.from_bytes(content[:8], "little")))
    opens_or_is_refused(path)


@given(data=st.data())
def test_numbers_in_the_json_of_safetensors(place, data):
    content = save(ARRAYS)
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].decode()
    found = data.draw(st.sampled_from(list(re.finditer(r"(?<=[\[,])\d+", header))))
    header = header[: found.start()] + str(data.draw(NUMBERS)) + header[found.end() :]
    path = place / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + content[8 + length :])
    opens_or_is_refused(path)


JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_entries_of_another_kind(place, data):
    name = data.draw(st.sampled_from(list(ARRAYS)) | st.text(max_size=6))
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    entry[data.draw(st.sampled_from(list(entry)))] = data.draw(JSON)
    raw = json.dumps({name: data.draw(st.just(entry) | JSON)}).encode()
    path = place / "a.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0" * 8)
    opens_or_is_refused(path)


@given(data=st.data())
def test_gguf(place, gguf_bytes, data):
    path = place / "a.gguf"
    path.write_bytes(damaged(data, gguf_bytes, 1200))
    opens_or_is_refused(path)


@given(content=st.binary(max_size=200), start=st.sampled_from([b"", b"GGUF\3\0\0\0", b"\x10" + b"\0" * 7 + b"{"]))
def test_noise(place, content, start):
    path = place / "a.safetensors"
    path.write_bytes(start + content)
    opens_or_is_refused(path)


@given(
    config=st.dictionaries(st.sampled_from(["norm_num_groups", "attention_head_dim", "act_fn", "norm_eps"]), JSON)
)
def test_config(place, config):
    folder = place / "unet"
    folder.mkdir(exist_ok=True)
    unet = {name.removeprefix("model.diffusion_model."): array for name, array in ARRAYS.items()}
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(save(unet))
    (folder / "config.json").write_text(json.dumps(config))
    try:
        survey(folder)
    except BadInput as error:
        assert str(error).isprintable()


def test_the_undamaged_files_open(place, gguf_bytes):
    """Else the rest would prove nothing."""
    for name, content in (("b.safetensors", save(ARRAYS)), ("b.gguf", gguf_bytes)):
        (place / name).write_bytes(content)
        found = survey(place / name)
        assert found.components.keys() == {"unet", "vae", "clip"}
        assert [not_finite(weights[name]) for weights in found.files for name in weights] == [0] * len(ARRAYS)
