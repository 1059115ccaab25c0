"""Every family from every place that a file may keep it in: the same tensors, none missing, none left over."""

import json

import numpy as np
import pytest
import small_families as small
import torch_files
from safetensors.numpy import save_file

from refsd.numerics.errors import BadInput
from refsd.weights import detect, open_checkpoint
from refsd.weights.checkpoint import FILES, survey
from refsd.weights.detect import CANDIDATES

# Other components of the same tensors: CLIP's places hold bigG's, and Ideogram's second network has the first's.
ALIKE = {("clip", "clip_g"): "clip_g", ("ideogram4-unconditional", "ideogram4"): "ideogram4-unconditional"}
HALVES = {("1.conv.0.",): "encoder", ("1.weight",): "decoder"}


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


def model(family):
    ((component, size),) = small.FAMILIES[family].items()
    return component, size


def layout_of(place):
    return "openclip" if "transformer.resblocks." in place.witnesses else place.layout.name


def cases():
    for place in CANDIDATES:
        for family in small.FAMILIES:
            component, _ = model(family)
            if place.component == component or (place.component, component) in ALIKE:
                yield pytest.param(place, family, id=f"{family} {layout_of(place)} {place.prefix}".rstrip())


def as_kept(place, family):
    """The tensors under our names, and under the place's."""
    component, size = model(family)
    arrays = small.weights(component, size)
    half = HALVES.get(place.witnesses)
    if half:
        arrays = {name: array for name, array in arrays.items() if name.startswith(half)}
    theirs = small.written(component, layout_of(place), size, arrays)
    start = f"{half}." if half else ""
    return arrays, {place.prefix + name.removeprefix(start): array for name, array in theirs.items()}


def assert_holds(checkpoint, component, arrays, layout=None):
    held = checkpoint.components[component]
    assert checkpoint.components.keys() == {component}
    assert not held.unused and not held.extras and not checkpoint.unknown and not checkpoint.extras
    assert layout is None or held.layout == layout
    assert held.weights.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = held.weights[name]
        assert np.asarray(tensor.values()).tobytes() == array.tobytes(), name


@pytest.mark.parametrize(("place", "family"), list(cases()))
def test_the_same_tensors_from_safetensors_and_gguf(tmp_path, place, family):
    arrays, kept = as_kept(place, family)
    component, _ = model(family)
    component = ALIKE.get((place.component, component), component)
    if not place.architectures:  # else names alone do not tell it, and a safetensors file holds nothing more
        save_file(kept, tmp_path / "a.safetensors")
        assert_holds(open_checkpoint(tmp_path / "a.safetensors"), component, arrays, place.layout.name)
    if any(array.ndim > 4 for array in kept.values()):
        return
    path = small.save_gguf(tmp_path / "a.gguf", kept, arch=next(iter(place.architectures), "test"))
    assert_holds(open_checkpoint(path), component, arrays, place.layout.name)


def test_every_place_is_tried():
    tried = {param.values[0] for param in cases()}
    assert tried == set(CANDIDATES)


@pytest.mark.parametrize("family", small.FAMILIES)
def test_the_same_from_shards_and_a_pickle(tmp_path, family):
    component, size = model(family)
    arrays = small.weights(component, size)
    assert_holds(open_checkpoint(small.save_shards(tmp_path / "a", arrays)), component, arrays)
    (tmp_path / "a.ckpt").write_bytes(pickled(arrays))
    assert_holds(open_checkpoint(tmp_path / "a.ckpt"), component, arrays)


def pickled(arrays):
    """As torch.save writes a state dict, without torch."""
    entries, storages = {}, []
    for i, (name, array) in enumerate(arrays.items()):
        stride = np.array(array.strides) // 4
        of = torch_files.storage(str(i), array.size)
        entries[name] = torch_files.tensor(array.shape, [int(n) for n in stride], of=of)
        storages.append((str(i), array.tobytes()))
    return torch_files.zipped(torch_files.state(**entries), storages)


@pytest.mark.parametrize("file", FILES)
def test_every_name_that_a_folder_s_file_may_have(tmp_path, file):
    component, size = model("sd15")
    arrays = small.weights(component, size)
    theirs = small.written(component, "diffusers", size, arrays)
    folder = tmp_path / "unet"
    folder.mkdir()
    weights = folder / file
    if file.endswith(".json"):
        weights = folder / ("shard-1.bin" if ".bin" in file else "shard-1.safetensors")
        (folder / file).write_text(json.dumps({"weight_map": dict.fromkeys(theirs, weights.name)}))
    if ".bin" in file:
        weights.write_bytes(pickled(theirs))
    else:
        save_file(theirs, weights)
    assert_holds(open_checkpoint(tmp_path), component, arrays, "diffusers")
    assert_holds(open_checkpoint(folder), component, arrays, "diffusers")


def test_safetensors_go_before_a_pickle_and_all_before_fp16(tmp_path):
    component, size = model("sd15")
    arrays = small.weights(component, size)
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(b"not read")
    (tmp_path / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"not read")
    save_file(small.written(component, "diffusers", size, arrays), tmp_path / "diffusion_pytorch_model.safetensors")
    assert_holds(open_checkpoint(tmp_path), component, arrays)


def test_a_folder_without_weights_is_told_what_is_looked_for(tmp_path):
    (tmp_path / "vae").mkdir()
    with pytest.raises(BadInput, match=r"vae: no weights: expected diffusion_pytorch_model.safetensors"):
        survey(tmp_path)
