"""What each family is taken for and why; and what is wrong with a hostile file of it: one line, nothing large."""

import json
import tracemalloc

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.models.catalogue import DENOISERS
from refsd.numerics.errors import BadInput
from refsd.weights import detect, open_checkpoint

ONE_EACH = {next(iter(parts)): family for family, parts in small.FAMILIES.items()}
DENOISED = [family for family, parts in small.FAMILIES.items() if next(iter(parts)) in DENOISERS]


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


def arrays_of(family):
    ((component, size),) = small.FAMILIES[family].items()
    return component, small.weights(component, size)


def refused(path, says):
    """A BadInput of one line, for less than 64 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=says) as told:
            checkpoint = open_checkpoint(path)
            for component in checkpoint.components.values():
                for name in component.weights:
                    component.weights[name]
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert "\n" not in str(told.value) and len(str(told.value)) < 3000


@pytest.mark.parametrize("family", DENOISED)
def test_its_name_and_the_reason(tmp_path, family):
    _, arrays = arrays_of(family)
    save_file(arrays, tmp_path / "a.safetensors")
    found = open_checkpoint(tmp_path / "a.safetensors").family
    assert found.name == family
    assert found.title and found.why


def broken(arrays):
    """What is wrong -> (tensors, what is said)"""
    first, gone = next(iter(arrays)), list(arrays)[len(arrays) // 2]
    wide, *_, narrow = [name for name, array in arrays.items() if array.ndim > 1] * 2
    return {
        "missing": ({n: a for n, a in arrays.items() if n != gone}, "1 missing|missing: "),
        "extra": (arrays | {"another.weight": np.ones(3, np.float32)}, "1 unused: .*another.weight"),
        "shape": (arrays | {narrow: arrays[narrow][..., :-1]}, "misshapen|missing|unused"),
        "one dimension more": (arrays | {wide: arrays[wide][..., None, None]}, "misshapen|missing|unused"),
        "a scalar": (arrays | {wide: np.float32(1)}, "misshapen|missing|unused|divides 1 channels"),
        "empty": (arrays | {wide: arrays[wide][:0]}, "misshapen|missing|unused|wrong"),
        "integers": (arrays | {wide: arrays[wide].astype(np.int32)}, "of type i32 for a float type"),
        "NaN": (arrays | {first: np.full_like(arrays[first], np.nan)}, "are NaN or infinite"),
        "a long name": (arrays | {"x" * 100_000: np.ones(1, np.float32)}, r"1 unused: .*\(100000 characters\)"),
        "a name of two lines": (arrays | {"a\nb\x1b[31m": np.ones(1, np.float32)}, r"1 unused: .*a.nb"),
    }


@pytest.mark.parametrize("what", broken({"a": np.ones((2, 2)), "b": np.ones(1), "c": np.ones(1)}))
@pytest.mark.parametrize("family", ONE_EACH.values())
def test_a_hostile_file_is_one_line(tmp_path, family, what):
    _, arrays = arrays_of(family)
    tensors, says = broken(arrays)[what]
    save_file({n: np.ascontiguousarray(a) for n, a in tensors.items()}, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", says)


def header_only(path, entries):
    """A safetensors file of headers; the bytes behind it are a hole."""
    header, end = {}, 0
    for name, (kind, shape, nbytes) in entries.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize("family", [family for family in ONE_EACH.values() if family in DENOISED])
def test_unknown_types_and_blocks_without_end(tmp_path, family):
    _, arrays = arrays_of(family)
    entries = {n: ("F32", list(a.shape), a.nbytes) for n, a in arrays.items()}
    first = next(iter(arrays))
    refused(header_only(tmp_path / "a.safetensors", entries | {first: ("F4", [2], 1)}), "F4|type")
    numbered = next(n for n in arrays if any(part.isdigit() and part == "0" for part in n.split(".")))
    for number in ("99", "4096", "99999999", "\u0663", "-1", "0x10"):
        name = numbered.replace(".0.", f".{number}.", 1)
        more = entries | {name: ("F32", list(arrays[numbered].shape), arrays[numbered].nbytes)}
        refused(header_only(tmp_path / "a.safetensors", more), "missing|unused")


def test_two_denoisers_and_one_twice(tmp_path):
    _, flux = arrays_of("flux-dev")
    _, mmdit = arrays_of("sd3")
    both = {f"model.diffusion_model.{n}": a for n, a in (flux | mmdit).items()}
    save_file(both, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", "ambiguous|unused")
    _, clip = arrays_of("clip-l")
    save_file({p + n: a for p in ("cond_stage_model.transformer.", "text_encoders.clip_l.transformer.")
               for n, a in clip.items()}, tmp_path / "b.safetensors")  # fmt: skip
    refused(tmp_path / "b.safetensors", "ambiguous: clip in ldm's layout under")
