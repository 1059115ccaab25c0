"""What a storage type costs a tensor is no difference; what a broken converter does to it is one."""

import ml_dtypes
import numpy as np
import pytest

from refsd.diagnosis.requantising import deviation, rotation_between
from refsd.kernels.quant import BLOCK_TYPES, convrot, int8_scaled
from refsd.kernels.quant.block_type import Importance
from refsd.numerics.tensor import GROUPED_TYPES, Grouping, Scaling, StoredTensor, stored

ROWS, COLUMNS = 96, 512
RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def seeded(request):
    """Draw the same for a test whatever ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(list(request.node.name.encode())).bit_generator.state


def normal():
    return RANDOM.standard_normal((ROWS, COLUMNS)).astype(np.float32) * np.float32(0.02)


def heavy_tailed():
    return (RANDOM.standard_t(3, (ROWS, COLUMNS)) * 0.02).astype(np.float32)


def outlier_columns():
    w = normal()
    w[:, ::61] *= 12
    return w


def uneven_rows():
    return normal() * np.exp(RANDOM.uniform(-4, 1, (ROWS, 1))).astype(np.float32)


def mostly_zero():
    return normal() * (RANDOM.random((ROWS, COLUMNS)) < 0.2)


WEIGHTS = {f.__name__: f for f in (normal, heavy_tailed, outlier_columns, uneven_rows, mostly_zero)}


def block(type, important=False):
    of = BLOCK_TYPES[type]

    def store(w):
        more = ()
        if of.importance is Importance.REQUIRED or (important and of.importance is Importance.OPTIONAL):
            more = (RANDOM.chisquare(1, w.shape[-1]).astype(np.float32) + np.float32(0.01),)
            if not important:
                more = (np.ones(w.shape[-1], np.float32),)
        return StoredTensor(type, w.shape, of.quantize(w.reshape(-1, of.block), *more).reshape(-1))

    return store


def f8(scaled):
    def store(w):
        scale = np.float32(np.abs(w).max() / 448 if scaled else 1)
        codes = (w / scale).astype(ml_dtypes.float8_e4m3fn)
        return stored(codes)._replace(scaling=Scaling(scale.reshape(1)) if scaled else None)

    return store


def int8(rotation=0, a_row=True):
    def store(w):
        turned = convrot.rotate(w, rotation) if rotation else w
        codes, scale = int8_scaled.quantize(turned if a_row else turned.reshape(1, -1))
        return stored(codes.reshape(w.shape))._replace(scaling=Scaling(scale, rotation))

    return store


def grouped(type, group):
    def store(w):
        table = GROUPED_TYPES[type]
        levels = table[np.isfinite(table)]
        x = w.reshape(-1, group)
        scale = np.abs(x).max(1) / np.float32(levels.max())
        if type == "mxfp8":
            scale = np.exp2(np.floor(np.log2(np.maximum(np.abs(x).max(1), 1e-30)))) / np.float32(256)
        y = x / np.where(scale, scale, 1)[:, None]
        codes = np.abs(y[..., None] - np.where(np.isfinite(table), table, 1e9)).argmin(-1).astype(np.uint8)
        if len(table) == 16:
            codes = codes.reshape(-1, 2) @ np.array([16, 1], np.uint8)
        return StoredTensor(type, w.shape, codes.reshape(-1), Grouping(scale.astype(np.float32), group))

    return store


def truncated(w):
    return stored((w.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16))


STORES = {
    **{type: block(type) for type in BLOCK_TYPES if type not in ("q8_1", "q8_k")},
    **{f"{type}, important": block(type, True) for type in ("q4_0", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl")},
    "f8": f8(False),
    "f8, scaled": f8(True),
    "int8": int8(),
    "int8, one scale": int8(a_row=False),
    "convrot": int8(256),
    "nf4": grouped("nf4", 64),
    "nvfp4": grouped("nvfp4_comfy", 16),
    "mxfp8": grouped("mxfp8", 32),
    "f16": lambda w: stored(w.astype(np.float16)),
    "bf16": lambda w: stored(w.astype(ml_dtypes.bfloat16)),
    "bf16, truncated": truncated,
}
SLOW = ("iq1", "iq2", "iq3")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("store", STORES)
def test_storage_is_no_difference(store, weights):
    w = WEIGHTS[weights]()
    if (store, weights) == ("iq1_m", "mostly_zero"):
        assert deviation(stored(w), STORES[store](w)).error > 4  # IQ1_M has no zero: these weights are lost
        return
    if store.startswith(SLOW):
        w = np.ascontiguousarray(w[:16])
    b = STORES[store](w)
    for one, other in ((stored(w), b), (stored(w.astype(np.float16)), b), (b, stored(w))):
        found = deviation(one, other)
        assert found.within, found


def zero_rows(w):
    w[[3, 40]] = 0


def negated_columns(w):
    w[:, [7, 300]] *= -1


def negated_rows(w):
    w[5] *= -1


def zero_blocks(w):
    w[10, 32:64] = 0
    w[20, 96:128] = 0


def rows_in_another_order(w):
    w *= np.exp(RANDOM.uniform(-1, 1, (ROWS, 1))).astype(np.float32)


DAMAGES = {
    zero_rows: "2 of 96 rows all zero, first 3",
    negated_columns: "2 of 512 columns negated, first 7",
    negated_rows: "1 of 96 rows negated, first 5",
    zero_blocks: "2 of 1536 blocks of 32 all zero, first 161",
    rows_in_another_order: "rows scaled by ",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("store", ["q8_0", "q6_k", "q4_0", "f8", "f8, scaled", "int8", "bf16", "nf4", "mxfp8"])
def test_damage_is_a_difference(store, damage):
    w = normal()
    wrong = w.copy()
    damage(wrong)
    found = deviation(stored(w), STORES[store](wrong))
    assert not found.within
    assert found.factor == 1
    assert DAMAGES[damage] in found.place


@pytest.mark.parametrize("store", ["q8_0", "int8", "bf16"])
def test_a_block_of_another_scale(store):
    w = normal()
    wrong = w.copy()
    wrong[10, 32:64] *= np.float32(1.3)
    assert deviation(stored(w), STORES[store](wrong)).place == "1 of 1536 blocks of 32 scaled by 1.3, first 161"


def test_many_zero_rows_of_few_bits_are_no_scale():
    """They lower the mean factor to 0.92, and the rest is no larger than the type's error."""
    w = normal()
    wrong = w.copy()
    wrong[::12] = 0
    found = deviation(stored(w), STORES["q3_k"](wrong))
    assert (found.factor, found.place) == (1, "8 of 96 rows all zero, first 0")


@pytest.mark.parametrize("store", [name for name in STORES if not name.startswith((*SLOW, "tq", "q1_", "q2_0"))])
@pytest.mark.parametrize("factor", [-1.0, 0.5, 1.5, 2.0])
def test_scaled(store, factor):
    w = normal()
    found = deviation(stored(w), STORES[store](w * np.float32(factor)))
    assert found.factor == pytest.approx(factor, rel=0.05)
    assert not found.within


def test_codes_to_127_of_a_scale_for_128():
    w = normal()
    found = deviation(stored(w), STORES["int8"](w * np.float32(128 / 127)))
    assert found.factor == pytest.approx(128 / 127, rel=1e-4)


def test_a_rotation_that_the_file_does_not_tell():
    w = normal()
    told = STORES["convrot"](w)
    assert isinstance(told.scaling, Scaling)
    untold = told._replace(scaling=told.scaling._replace(rotation=0))
    assert not deviation(stored(w), untold).within
    assert rotation_between(stored(w), untold) == 256
    assert rotation_between(stored(w), told) == 0
    assert rotation_between(stored(w), stored(normal())) == 0


def test_folded_blocks_of_a_convolution():
    w = RANDOM.standard_normal((32, 16, 3, 3)).astype(np.float32)
    folded = STORES["q8_0"](w.reshape(-1, 256))._replace(shape=w.shape)
    assert deviation(stored(w), folded).within
    assert deviation(stored(w), STORES["q8_0"]((2 * w).reshape(-1, 256))._replace(shape=w.shape)).factor > 1.9


def test_a_small_change_in_the_same_storage_is_no_requantising():
    w = normal()
    assert not deviation(
        stored(w), stored(w * (1 + 1e-7 * RANDOM.standard_normal(w.shape)).astype(np.float32))
    ).within
    assert not deviation(STORES["q4_0"](w), STORES["q4_0"](w + np.float32(1e-3) * normal())).within
