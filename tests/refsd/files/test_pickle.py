"""What torch saved is read bit for bit, in both of its formats, without torch."""

import json
import pickle
import tracemalloc

import numpy as np
import pytest
import torch_files as files
from safetensors.numpy import save_file
from torch_files import V2, legacy, named, numbers, state, storage, tensor, text, zipped

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import GROUPED_TYPES
from refsd.weights import open_checkpoint

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def opened(tmp_path):
    def open_content(content, name="a.ckpt"):
        (tmp_path / name).write_bytes(content)
        return open_weights(tmp_path / name)

    return open_content


@pytest.mark.smoke
@pytest.mark.parametrize("path", [files.ZIPPED, files.LEGACY])
def test_what_torch_saved(path):
    with np.load(files.RECORDED) as recorded:
        want = dict(recorded)
    about, shapes = json.loads(str(want.pop("about"))), json.loads(str(want.pop("shapes")))
    assert about["torch"]
    weights = open_weights(path)
    assert weights.format == "pickle"
    assert weights.keys() == want.keys() == shapes.keys()
    for name, raw in want.items():
        tensor = weights[name]
        assert list(tensor.shape) == list(tensor.data.shape) == shapes[name]
        assert tensor.data.tobytes() == raw.tobytes(), name
        assert weights.headers[name].nbytes == raw.size
    types = {"f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i64", "i32", "i16", "i8", "u8", "bool"}
    assert {header.type for header in weights.headers.values()} == types
    assert weights.metadata == {"epoch": 3, "global_step": 470000, "pytorch-lightning_version": "1.4.2"}


def test_reads_are_views_of_the_file(opened):
    big = np.arange(2**18, dtype=np.float32)
    saved = state(w=tensor((2**18,), (1,), of=storage(numel=2**18)))
    weights = opened(zipped(saved, [("0", big.tobytes())], prefix="a/"))
    tracemalloc.start()
    data = weights["w"].data
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not data.flags.writeable
    assert peak < 2**17
    np.testing.assert_array_equal(data, big)


def test_strides_of_single_rows_do_not_count(opened):
    """A [1, 6] of any first stride follows one after another: a view, no copy."""
    weights = opened(zipped(state(w=tensor((1, 6), (77, 1)))))
    assert weights.strides == {}
    np.testing.assert_array_equal(weights["w"].values(), ROWS.reshape(1, 6))


@pytest.mark.parametrize("made", [zipped, legacy])
@pytest.mark.parametrize("name", ["a.ckpt", "a.pt", "a.pth", "a.bin", "a.pkl", "named.anything", "a.safetensors"])
def test_the_content_tells_what_it_is(opened, made, name):
    np.testing.assert_array_equal(opened(made(state(w=tensor())), name)["w"].values(), ROWS)


def test_a_safetensors_file_may_begin_as_a_pickle(tmp_path):
    """Its header is 0x280 bytes long, written b"\\x80\\2..."."""
    path = tmp_path / "a.safetensors"
    save_file({"w": ROWS}, path, {"fill": ""})
    save_file({"w": ROWS}, path, {"fill": " " * (0x280 - int.from_bytes(path.read_bytes()[:8], "little"))})
    assert path.read_bytes()[:8] == b"\x80\2" + b"\0" * 6
    weights = open_weights(path)
    assert weights.format == "safetensors"
    np.testing.assert_array_equal(weights["w"].values(), ROWS)


PLAIN = state(w=tensor())


def wrapped(**entries: bytes) -> bytes:
    return V2 + b"}(" + b"".join(text(name) + value[2:-1] for name, value in entries.items()) + b"u."


OTHER = state(w=tensor((3, 2), (1, 3)))
NOTHING = state(lr=b"K\1")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (PLAIN, {"w": ROWS}),
        (wrapped(state_dict=PLAIN, optimizer=OTHER), {"w": ROWS}),
        (wrapped(params=OTHER, params_ema=PLAIN), {"w": ROWS}),
        (wrapped(params=PLAIN), {"w": ROWS}),
        (wrapped(params=PLAIN, params_ema=NOTHING), {"w": ROWS}),
        (wrapped(model=PLAIN, ema=OTHER), {"w": ROWS}),
        (wrapped(model=OTHER, state_dict=PLAIN), {"w": ROWS}),
        (wrapped(state_dict=wrapped(model=PLAIN)), {"w": ROWS}),
        (wrapped(unet=PLAIN, text=OTHER), {"unet.w": ROWS, "text.w": ROWS.T}),
        (wrapped(model=wrapped(unet=PLAIN)), {"model.unet.w": ROWS}),
        (state(w=tensor(), step=b"K\1", names=b"](" + tensor() + b"e", flag=b"\x88"), {"w": ROWS}),
    ],
)
def test_the_state_dict_is_found(opened, content, names):
    weights = opened(zipped(content))
    assert weights.keys() == names.keys()
    for name, want in names.items():
        np.testing.assert_array_equal(weights[name].values(), want)


def reduced(module, name, arguments=b")"):
    return named(module, name) + arguments + b"R"


PAIRS = b"(](" + b"](" + text("w") + tensor() + b"e" + b"e" + b"tR"
EVERYTHING = {
    "python 2's dict": named("collections", "OrderedDict") + PAIRS,
    "a dict with _metadata": b"}" + text("w") + tensor() + b"s}" + text("_metadata") + b"}sb",
    "a defaultdict": named("collections", "defaultdict") + b"(" + named("__builtin__", "dict") + b"tR"
    b"(" + text("w") + tensor() + b"u",
    "a ParameterDict": named("torch.nn.modules.container", "ParameterDict") + b")\x81"
    b"}" + text("_parameters") + b"}" + text("w") + tensor() + b"ssb",
    "keys that are no text": b"}(K\1" + tensor() + b"(K\1K\2t" + tensor() + text("w") + tensor() + b"u",
    "what trainers leave": b"}("
    + text("w")
    + tensor()
    + text("a")
    + reduced(
        "numpy.core.multiarray", "scalar", b"(" + reduced("numpy", "dtype", b"(U\2f8K\0K\1tR")[:-1] + b"U\1\xfft"
    )
    + text("b")
    + named("argparse", "Namespace")
    + b")\x81}"
    + text("lr")
    + b"K\1sb"
    + named("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint")
    + b"}"
    + text("best")
    + b"Ns"
    + text("c")
    + named("__builtin__", "set")
    + b"(](K\1K\2etR"
    + b"u",
    "a parameter with a state": b"}"
    + text("w")
    + named("torch._utils", "_rebuild_parameter_with_state")
    + b"("
    + tensor()
    + b"\x88}}tRs",
    "a cuda storage": b"}" + text("w") + tensor().replace(b"ctorch\nFloat", b"ctorch.cuda\nFloat") + b"s",
    "a torch.Size": b"}"
    + text("w")
    + tensor().replace(numbers((2, 3)), reduced("torch", "Size", b"(" + numbers((2, 3)) + b"t"), 1)
    + b"s",
}


@pytest.mark.parametrize("case", EVERYTHING)
def test_what_else_is_found_in_checkpoints(opened, case):
    weights = opened(zipped(V2 + EVERYTHING[case] + b"."))
    assert list(weights) == ["w"]
    np.testing.assert_array_equal(weights["w"].values(), ROWS)


def test_a_tensor_with_attributes(opened):
    function, rest = tensor()[: -len(b"R")].split(b"(", 1)
    saved = named("torch._tensor", "_rebuild_from_type_v2") + b"(" + function + named("torch", "Tensor")
    saved += b"(" + rest + b"}" + text("note") + b"K\1s" + b"tR"
    np.testing.assert_array_equal(opened(zipped(state(w=saved)))["w"].values(), ROWS)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_from_2(opened, protocol):
    """Frames, short texts and MEMOIZE come with 4."""
    plain = {"epoch": 1, "names": ["a", b"b", 2.5, 2**40, -(2**70), None, True, (), (1,), (1, 2, 3, 4)], "s": {1}}
    plain |= {"frozen": frozenset([1]), "bytes": bytearray(b"abc"), "long": "x" * 300}
    saved = pickle.dumps(plain, protocol)
    with pytest.raises(BadInput, match="no tensors in its 6 entries"):
        opened(zipped(saved))
    np.testing.assert_array_equal(opened(zipped(b"\x80" + bytes([protocol]) + PLAIN[2:]))["w"].values(), ROWS)


def test_names_of_the_stack(opened):
    function = b"\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93"
    saved = tensor().replace(named("torch._utils", "_rebuild_tensor_v2"), function)
    np.testing.assert_array_equal(opened(zipped(b"\x80\4" + state(w=saved)[2:]))["w"].values(), ROWS)


def test_views_of_a_storage_in_a_legacy_file(opened):
    """Before 0.4 a slice of a storage was a storage of its own: its key, start and size follow."""
    view = b"(" + text("1") + b"K\2K\4t"
    w = tensor((2, 2), (1, 2), of=storage(view=view))
    np.testing.assert_array_equal(opened(legacy(state(w=w)))["w"].values(), [[2, 4], [3, 5]])
    outside = tensor((2, 2), (1, 2), offset=1, of=storage(view=view))
    with pytest.raises(BadInput, match=r'tensor "w": .*its last element is 4, its storage ends at 4'):
        opened(legacy(state(w=outside)))
    with pytest.raises(BadInput, match='view of the storage "0" that ends outside it'):
        opened(legacy(state(w=tensor(of=storage(view=b"(" + text("1") + b"K\3K\4t")))))


def test_a_type_that_refsd_cannot_read(opened):
    weights = opened(zipped(state(w=tensor((3,), (1,), of=storage(numel=3, kind="ComplexFloatStorage")))))
    assert weights.headers["w"].type == "c64"
    with pytest.raises(BadInput, match=r'tensor "w": refsd cannot read type c64'):
        weights["w"]


def test_byte_order(opened):
    np.testing.assert_array_equal(opened(zipped(PLAIN, more=[("archive/byteorder", "little")]))["w"].values(), ROWS)
    with pytest.raises(BadInput, match="not little-endian"):
        opened(zipped(PLAIN, more=[("archive/byteorder", "big")]))
    with pytest.raises(BadInput, match="not little-endian"):
        opened(legacy(PLAIN, system={"little_endian": False}))


def test_shards(tmp_path):
    (tmp_path / "1.bin").write_bytes(zipped(state(a=tensor())))
    (tmp_path / "2.bin").write_bytes(legacy(state(b=tensor((3, 2), (1, 3)))))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.bin", "b": "2.bin"}}))
    weights = open_weights(index)
    assert weights.format == "pickle"
    np.testing.assert_array_equal(weights["a"].values(), ROWS)
    np.testing.assert_array_equal(weights["b"].values(), ROWS.T)


@pytest.mark.parametrize("made", [zipped, legacy])
def test_a_checkpoint_of_a_model(single, tmp_path, made):
    """The same tensors in a pickle and in safetensors are the same components."""
    save_file(single, tmp_path / "a.safetensors")
    want = open_checkpoint(tmp_path / "a.safetensors")
    entries, storages = {}, []
    kinds = {"float32": "FloatStorage", "int64": "LongStorage"}
    for i, (name, array) in enumerate(single.items()):
        strides = [step // array.itemsize for step in array.strides]
        of = storage(str(i), array.size, kinds[array.dtype.name])
        entries[name] = tensor(array.shape, strides, of=of)
        storages.append((str(i), array))
    saved = wrapped(state_dict=state(**entries), callbacks=NOTHING)
    if made is zipped:
        content = zipped(saved, [(key, array.tobytes()) for key, array in storages])
    else:
        data = b"".join(array.size.to_bytes(8, "little") + array.tobytes() for _, array in storages)
        content = legacy(saved, [key for key, _ in storages], data)
    (tmp_path / "a.ckpt").write_bytes(content)
    got = open_checkpoint(tmp_path / "a.ckpt")
    assert got.components.keys() == want.components.keys() == {"unet", "vae", "clip"}
    for part, component in want.components.items():
        assert got.components[part].size == component.size
        for name in component.weights:
            assert got.components[part].weights[name].data.tobytes() == component.weights[name].data.tobytes()


def test_scales_join_their_weights(tmp_path):
    """As in safetensors; rows that do not follow one another too, but no codes of groups."""
    codes = np.arange(-6, 6, dtype=np.int8)
    scales = np.float32([0.5, 3, 0.25])
    pickled = state(
        **{
            "a.weight": tensor((3, 4), (1, 3), 0, storage("0", 12, "CharStorage")),
            "a.weight_scale": tensor((3, 1), (1, 1), 0, storage("1", 3)),
            "a.bias": tensor((3,), (1,), 0, storage("1", 3)),
        }
    )
    (tmp_path / "a.pt").write_bytes(zipped(pickled, [("0", codes.tobytes()), ("1", scales.tobytes())]))
    weights = open_weights(tmp_path / "a.pt")
    assert sorted(weights) == ["a.bias", "a.weight"]
    assert (weights["a.weight"].values() == codes.reshape(4, 3).T * scales[:, None]).all()


def test_codes_that_do_not_follow_one_another_are_refused(tmp_path):
    config = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": [64, 2]}).encode()
    bytes_ = lambda key, n: storage(key, n, "ByteStorage")
    pickled = state(
        **{
            "a.weight": tensor((2, 32), (1, 2), 0, bytes_("0", 64)),
            "a.weight.absmax": tensor((2,), (1,), 0, storage("1", 16)),
            "a.weight.quant_map": tensor((16,), (1,), 0, storage("1", 16)),
            "a.weight.quant_state.bitsandbytes__nf4": tensor((len(config),), (1,), 0, bytes_("2", len(config))),
        }
    )
    storages = [("0", bytes(64)), ("1", GROUPED_TYPES["nf4"].tobytes()), ("2", config)]
    (tmp_path / "a.pt").write_bytes(zipped(pickled, storages))
    with pytest.raises(BadInput, match=r'tensor "a.weight": its codes do not follow one another'):
        open_weights(tmp_path / "a.pt")
