"""Damaged folders, indices and scales: they open as what they say, or are BadInput in one line. No memory taken."""

import json
import os
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import small_families as small
from hypothesis import given
from safetensors.numpy import save_file

from refsd.diagnosis.health import examine
from refsd.files.formats import open_weights
from refsd.kernels.quant import grouped
from refsd.models.catalogue import NETWORKS
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import GROUPED_TYPES
from refsd.weights import open_checkpoint
from refsd.weights.describe import describe

PARTS = {name: network.folder for name, network in NETWORKS.items() if network.folder is not None}

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 63, 64, 2**31, 2**63, 10**40, 0.5, -0.0, 1e400, float("nan")])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
FAMILIES = {family: parts for family, parts in small.FAMILIES.items() if next(iter(parts)) in PARTS}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Compiling takes memory too: it is done before."""
    for table in GROUPED_TYPES.values():
        grouped.dequantize(np.zeros(32, np.uint8), table, np.ones(4), 16)
    return tmp_path_factory.mktemp("fuzz")


def refused_in_one_line(act):
    """-> what was said; None where nothing was wrong."""
    tracemalloc.start()
    try:
        act()
        said = None
    except BadInput as error:
        said = str(error)
        assert said.isprintable()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**24
    return said


@pytest.fixture(scope="module")
def folders(place):
    """family -> a folder that opens, and its config.json"""
    made = {}
    for family, parts in FAMILIES.items():
        ((component, size),) = parts.items()
        part = PARTS[component]
        folder = place / family / (part.folder or "controlnet")
        folder.mkdir(parents=True)
        layout = "diffusers" if (component, "diffusers") in small.KEYMAPS else "original"
        weights = {n: np.zeros(shape, np.float32) for n, shape in small.shapes(component, size).items()}
        save_file(small.written(component, layout, size, weights), folder / part.file)
        made[family] = folder, dict(part.config(size))
    return made


@given(family=st.sampled_from(sorted(FAMILIES)), data=st.data())
def test_any_config_of_any_family(folders, family, data):
    folder, config = folders[family]
    fields = st.sampled_from(sorted(config)) | st.sampled_from(["text_config", "rope_parameters", "another"])
    changed = data.draw(st.dictionaries(fields, JSON, max_size=3))
    (folder / "config.json").write_text(json.dumps(config | changed))
    refused_in_one_line(lambda: open_checkpoint(folder.parent if folder.name != "controlnet" else folder))


SHARDS = {"a-1.safetensors": ["x", "y"], "a-2.safetensors": ["z"]}


@given(data=st.data())
def test_an_index(place, data):
    """What it names, where, and whether that is a file at all."""
    folder = place / "index"
    folder.mkdir(exist_ok=True)
    for file, names in SHARDS.items():
        save_file({name: np.ones(3, np.float32) for name in names}, folder / file)
    good = {name: file for file, names in SHARDS.items() for name in names}
    files = st.sampled_from(
        [*SHARDS, "gone.safetensors", "../a.safetensors", "/etc/passwd", "a.index.json", "", "\0"]
    )
    entries = st.dictionaries(st.sampled_from([*good, "w"]) | st.text(max_size=3), files | JSON, max_size=3)
    index = data.draw(st.builds(lambda more: {"weight_map": good | more}, entries) | JSON)
    raw = json.dumps(index).encode()
    cut = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
    path = folder / "a.safetensors.index.json"
    path.write_bytes(raw[:cut])
    said = refused_in_one_line(
        lambda: [weights[name].values() for weights in [open_weights(path)] for name in weights]
    )
    assert said is None or said.startswith(str(folder))


@given(data=st.data())
def test_states_of_bitsandbytes(place, data):
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [8, 16], "nested_blocksize": 256, "nested_offset": 0.5}
    state |= data.draw(st.dictionaries(st.sampled_from(sorted(state)), JSON, max_size=2))
    arrays = {
        "": np.ones((64, 1), np.uint8),
        ".absmax": np.ones(2, np.uint8),
        ".quant_map": GROUPED_TYPES["nf4"],
        ".nested_absmax": np.ones(1, np.float32),
        ".nested_quant_map": np.ones(256, np.float32),
        ".quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }
    for _ in range(data.draw(st.integers(0, 2))):
        part = data.draw(st.sampled_from(sorted(arrays)))
        other = data.draw(
            st.sampled_from([None, np.zeros(0, np.uint8), np.ones(3, np.float32), np.ones(256, np.int8)])
        )
        arrays = {name: array for name, array in arrays.items() if name != part}
        arrays |= {} if other is None else {part: other}
    path = place / "b.safetensors"
    save_file({f"a.weight{name}": array for name, array in arrays.items()}, path)
    opens_or_is_refused(path)


@given(data=st.data())
def test_scales_of_groups(place, data):
    kind = data.draw(st.sampled_from(["nvfp4", "mxfp8"]) | JSON)
    config = data.draw(st.just({"format": kind}) | JSON)
    arrays = {
        "weight": np.ones((32, 32), np.uint8),
        "weight_scale": np.ones((128, 4), np.uint8),
        "weight_scale_2": np.float32([1]),
        "comfy_quant": np.frombuffer(json.dumps(config).encode(), np.uint8),
    }
    for _ in range(data.draw(st.integers(0, 2))):
        part = data.draw(st.sampled_from(sorted(arrays)))
        shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 4, 16, 32, 128, 160]), max_size=3)))
        arrays[part] = np.zeros(shape, data.draw(st.sampled_from([np.uint8, np.int8, np.float32])))
    path = place / "c.safetensors"
    save_file({f"a.{name}": np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    opens_or_is_refused(path)


def opens_or_is_refused(path):
    """Up to reading every value."""

    def act():
        weights = open_weights(path)
        for name, header in weights.headers.items():
            assert weights[name].values().shape == header.shape

    said = refused_in_one_line(act)
    assert said is None or said.startswith(str(path))


def test_the_undamaged_open(folders):
    """Else the rest would prove nothing."""
    for family, (folder, config) in folders.items():
        (folder / "config.json").write_text(json.dumps(config))
        checkpoint = open_checkpoint(folder.parent if folder.name != "controlnet" else folder)
        assert checkpoint.family is not None, family
        json.dumps([describe(checkpoint), examine(checkpoint, whole=True).findings])


def test_a_pipe_is_not_waited_for(place):
    os.mkfifo(place / "pipe")
    said = refused_in_one_line(lambda: open_weights(place / "pipe"))
    assert said is not None and "pipe: a pipe; a .safetensors, .gguf or torch file" in said
