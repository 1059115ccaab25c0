"""The ggml adapter without a ggml: where it looks, what it loads, what it declares."""

import numpy as np
import pytest

from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.devices import Device
from refsd.engines.ggml.graph import type_id
from refsd.engines.ggml.library import Library, library_files
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import GGML_CPU, GGML_CPU_FLASH, Float16Sums


class Stub:
    """What GgmlLibrary answers, without a library."""

    version = "0"
    lacks = ()
    device = Device("CPU", "a processor", "CPU")

    def __init__(self, tables=(), rounds_f32_patches=False, f16_sums=(), ops=(), f16_lanes=0):
        self.ops = {"ggml": ["linear", "conv2d", "embedding", "dequantize", *ops]}
        self.ops |= {"ggml-flash": ["attention"], "ggml-direct": ["conv2d"]}
        self.gelu_tables = {op: op in tables for op in ("gelu", "gelu_tanh", "quick_gelu")}
        self.rounds_f32_patches = {"conv2d": rounds_f32_patches}
        self.f16_sums = f16_sums
        self.f16_lanes = f16_lanes

    def unsupported(self, graphs, case):
        return ""

    def sums_flash_in_f16(self, L, J, D, E):
        return (L, J, D, E) in self.f16_sums


def case(op, **inputs):
    return Case(op, op, {name: Recipe(shape, kind) for name, (shape, kind) in inputs.items()})


def conv(kind):
    return case("conv2d", x=((1, 1, 4, 4), "f32"), weight=((1, 1, 3, 3), kind))


def test_parts_are_loaded_in_the_order_of_their_needs(tmp_path):
    for name in ("libggml.so", "libggml-cpu.so.0", "libggml-base.so", "libggml-base.so.0.9.8", "libother.so"):
        (tmp_path / name).touch()
    expected = [tmp_path / name for name in ("libggml-base.so", "libggml-cpu.so.0", "libggml.so")]
    assert library_files(tmp_path) == expected
    assert library_files(tmp_path / "libggml.so") == expected


def test_a_library_that_holds_ggml_inside(tmp_path):
    (tmp_path / "libstable-diffusion.so").touch()
    assert library_files(tmp_path / "libstable-diffusion.so") == [tmp_path / "libstable-diffusion.so"]
    with pytest.raises(BadInput, match=r"no libggml-base, libggml-cpu or libggml in this folder"):
        library_files(tmp_path)
    with pytest.raises(BadInput, match=r"no such file or folder"):
        library_files(tmp_path / "nothing")


def test_what_is_no_library_is_said_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "libggml.so").write_bytes(b"no ELF")
    with pytest.raises(BadInput, match=r"not a loadable libggml"):
        Library(tmp_path)
    for found in (ggml.find(str(tmp_path)), ggml.find(str(tmp_path / "nothing"))):
        assert [one.engine for one in found] == [None]
        assert str(tmp_path) in found[0].why_not
        assert "\n" not in found[0].why_not and "Traceback" not in found[0].why_not


def test_where_it_looks(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_GGML", str(tmp_path / "nothing"))
    assert "nothing: no such file" in ggml.find()[0].why_not
    monkeypatch.delenv("REFSD_GGML")
    monkeypatch.setattr(ggml, "_PACKAGES", {"no_such_package": "lib"})
    assert "REFSD_GGML" in ggml.find()[0].why_not


def test_refusals():
    engine = ggml.GgmlEngine("ggml", Stub())
    taken = case("linear", x=((1, 32), "f32"), weight=((1, 32), "q4_0"))
    assert engine.refuses(taken) is None
    assert "no silu" in engine.refuses(case("silu", x=((1, 2), "f32")))
    assert "i8" in engine.refuses(case("linear", x=((1, 32), "f32"), weight=((1, 32), "i8")))
    assert "bf16 filter" in engine.refuses(conv("bf16"))
    assert engine.refuses(case("dequantize", x=((1, 32), "q8_0"))) is None
    assert "no type i16" in engine.refuses(case("embedding", ids=((1,), "i64"), weight=((1, 2), "i16")))
    unseen = Case("a", "attention", {"mask": Recipe((3, 4), "f16", "masked", n=2)})
    assert "sees no key" in ggml.GgmlEngine("ggml", Stub(ops=("attention",))).refuses(unseen)
    assert ggml.GgmlEngine("ggml-flash", Stub()).refuses(unseen) is None
    depthwise = Case("a", "conv2d", {"x": Recipe((1, 2, 4, 4)), "weight": Recipe((2, 1, 3, 3))}, {"groups": 2})
    grouped = Case("a", "conv2d", {"x": Recipe((1, 4, 4, 4)), "weight": Recipe((4, 2, 3, 3))}, {"groups": 2})
    assert engine.refuses(depthwise) is None
    assert "know no groups" in engine.refuses(grouped)
    assert "knows no groups" in ggml.GgmlEngine("ggml-direct", Stub()).refuses(depthwise)
    assert "no linear in this ggml-flash" in ggml.GgmlEngine("ggml-flash", Stub()).refuses(taken)


def test_declared_is_what_was_measured():
    x = ((1, 2), "f32")
    engine = ggml.GgmlEngine("ggml", Stub(tables=("gelu_tanh",)))
    assert engine.numerics(case("gelu_tanh", x=x)) is GGML_CPU
    assert engine.numerics(case("quick_gelu", x=x)).gelu is None
    assert engine.numerics(conv("f16")) is GGML_CPU
    assert engine.numerics(conv("f32")).conv is None
    assert ggml.GgmlEngine("ggml", Stub(rounds_f32_patches=True)).numerics(conv("f32")) is GGML_CPU

    direct = ggml.GgmlEngine("ggml-direct", Stub(rounds_f32_patches=True))
    assert direct.numerics(conv("f32")).conv is None
    assert direct.numerics(conv("f16")) is GGML_CPU

    flash = ggml.GgmlEngine("ggml-flash", Stub(f16_sums=[(5, 7, 40, 8)]))
    shapes = {"q": ((1, 5, 1, 40), "f32"), "k": ((1, 7, 1, 40), "f32"), "v": ((1, 7, 1, 8), "f32")}
    assert flash.numerics(case("attention", **shapes)) is GGML_CPU_FLASH
    assert flash.numerics(case("attention", **{**shapes, "q": ((1, 64, 1, 40), "f32")})).flash_sum is None


def test_products_that_lanes_of_float16_add_up_are_declared():
    """Rows shorter than the lanes are added up in float64."""
    lanes = ggml.GgmlEngine("ggml", Stub(f16_lanes=128))

    def linear(width, kind="f16"):
        return lanes.numerics(case("linear", x=((2, width), "f32"), weight=((3, width), kind)))

    assert linear(128).sums == {"linear": Float16Sums(step=16)}
    assert linear(127) is GGML_CPU and linear(256, "q8_0") is GGML_CPU and linear(256, "f32") is GGML_CPU
    filters = case("conv2d", x=((1, 32, 4, 4), "f32"), weight=((1, 32, 3, 3), "f16"))
    assert lanes.numerics(filters).sums == {"conv": Float16Sums(step=16)}
    assert lanes.numerics(conv("f16")) is GGML_CPU


def test_the_lanes_are_measured():
    """A library that adds up float16 products in 32 lanes of float16, then the lanes."""

    class Lanes(ggml.GgmlLibrary):
        def __init__(self, lanes):
            self._lanes = lanes

        def compute(self, op, params, inputs, flash=False, direct=False):
            terms = (inputs["x"].values() * inputs["weight"].values()).reshape(-1, self._lanes)
            sums = np.zeros(self._lanes, np.float16 if self._lanes > 1 else np.float32)
            for row in terms:
                sums += row.astype(sums.dtype)
            return sums.sum(dtype=np.float32).reshape(1, 1)

    assert Lanes(32).f16_lanes == 32
    assert Lanes(128).f16_lanes == 128
    assert Lanes(1).f16_lanes == 0


def test_numbers_of_types():
    assert [type_id(name) for name in ("f32", "f16", "bf16", "i32", "q4_0", "q6_k")] == [0, 1, 30, 26, 2, 14]
    with pytest.raises(ValueError, match="no type u8"):
        type_id("u8")


def test_a_value_between_float16_and_float32():
    unseen = ggml._UNSEEN_BY_F16
    assert unseen != 1 and np.float16(unseen) == 1
