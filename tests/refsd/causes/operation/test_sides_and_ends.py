"""Paddings of other sides, memory beside a picture, doubled ends, entries counted by groups: one rule each."""

import numpy as np
import pytest
from naming import named

from refsd.golden.mutations import answer
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _padded(x, padding, cut):
    top, bottom, left, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    return x[:, :, : cut[0], : cut[1]]


@pytest.mark.parametrize(
    ("case", "order", "words"),
    [
        ("sides-n1-c20-k7-h9-w12", (0, 1, 3), "the padding at the right is taken for that at the left"),
        ("5x3-n2-c7-k20-h9-w13", (2, 1, 2), "the padding at the left is taken for that at the top"),
    ],
)
def test_one_sides_padding_stands_at_another(case, order, words):
    """order: which number of the padding stands at the top, at the bottom, at the left; the size is right."""

    def wrong(op, inputs, params):
        x, own = inputs["x"].values(), params["padding"]
        size = x.shape[2] + sum(own[:2]), x.shape[3] + sum(own[2:])
        wide = _padded(x, (*(own[i] for i in order), 9), (99, size[1]))
        wide = _padded(wide, (0, 9, 0, 0), size)
        return answer(op, {**inputs, "x": stored(np.ascontiguousarray(wide))}, {**params, "padding": (0, 0, 0, 0)})

    assert words in named(f"conv2d/f32/{case}", wrong)


@pytest.mark.parametrize(("above", "words"), [(True, "above"), (False, "at the left")])
def test_memory_beside_a_plane_is_read_on_one_side(above, words):
    """The plane before lies above and before: all planes one behind the other."""

    def wrong(op, inputs, params):
        (x,) = _values(inputs, "x")
        N, C, H, W = x.shape
        memory = np.concatenate([np.zeros(W), x.ravel()])
        wide = np.zeros((N, C, H + 2, W + 2), np.float32)
        wide[:, :, 1:-1, 1:-1] = x
        for i, (n, c) in enumerate(np.ndindex(N, C)):
            start = W + i * H * W
            if above:
                wide[n, c, 0, 1:-1] = memory[start - W : start]
            else:
                wide[n, c, 1:-1, 0] = memory[start - 1 : start - 1 + H * W : W]
        return answer(op, {**inputs, "x": stored(wide)}, {**params, "padding": (0, 0, 0, 0)})

    told = named("conv2d/f32/latent-n2-c4-k40-h12-w9", wrong)
    place = f"no border {words}: the rows before and behind are read there, as neighbouring memory, all planes"
    assert told[0] == place


@pytest.mark.parametrize("case", ["linear/f32/square-weight-x7x77-o77", "layer_norm/f32/awkward-x33x77"])
@pytest.mark.parametrize(("to", "of", "words"), [(-1, -2, "last"), (0, 1, "first")])
def test_a_slice_at_an_end_is_its_neighbours_copy(case, to, of, words):
    def wrong(op, inputs, params):
        y = answer(op, inputs, params)
        y[:, to] = y[:, of]
        return y

    assert named(case, wrong) == [f"the {words} of axis 1 (channels) is a copy of its neighbour"]


@pytest.mark.parametrize(
    ("which", "rule", "words"),
    [
        ("bias", lambda i, k, n: i % k, "bias are read by the place along axis C, modulo num_groups"),
        ("weight", lambda i, k, n: i // k, "weight are read one for each num_groups along axis C"),
    ],
)
def test_entries_are_counted_by_the_groups(which, rule, words):
    def wrong(op, inputs, params):
        own = inputs[which].values()
        read = own[rule(np.arange(len(own)), params["num_groups"], len(own))]
        return answer(op, {**inputs, which: stored(read)}, params)

    assert named("group_norm/f32/vae-n1-c96-h6-w11-g32", wrong)[0] == f"entries of {words}"


@pytest.mark.parametrize(
    ("case", "name", "axis", "to", "words"),
    [
        ("attention/f32/cross-b2-l20-j77-h2-d40", "k", 1, 0, "k, axis J: the first is read for the last, too"),
        ("resize_bilinear/f32/up-n2-c3-h5-w7-to13x11", "x", 3, 0, "x, axis W: the first is read for the last, too"),
        ("conv2d/f32/3x3-n2-c33-k20-h9-w14", "x", 2, -2, "x, axis H: the last but one is read for the last, too"),
    ],
)
def test_another_slice_is_read_for_the_last(case, name, axis, to, words):
    def wrong(op, inputs, params):
        x = np.moveaxis(inputs[name].values().copy(), axis, 0)
        x[-1] = x[to]
        return answer(op, {**inputs, name: stored(np.ascontiguousarray(np.moveaxis(x, 0, axis)))}, params)

    assert named(case, wrong)[0] == words


@pytest.mark.parametrize("case", ["corners-up-n2-c3-h5-w7-to13x11", "factor-up-n2-c3-h5-w7-to7x12"])
def test_the_upper_of_two_pixels_is_limited_too_early(case):
    def wrong(op, inputs, params):
        (x,) = _values(inputs, "x")
        for axis, new in ((2, params["height"]), (3, params["width"])):
            n, factors = x.shape[axis], params["factors"]
            at = (np.arange(new) + 0.5) / factors[axis - 2] - 0.5 if factors else np.linspace(0, n - 1, new)
            low = np.floor(at.clip(0, n - 1) + 1e-12).astype(int)
            t = (at.clip(0, n - 1) - low).reshape(-1, *[1] * (3 - axis))
            x = x.take(low, axis) * (1 - t) + x.take(np.minimum(low + 1, n - 2), axis) * t
        return x

    assert named(f"resize_bilinear/f32/{case}", wrong) == ["the upper of two pixels is never the last"]


def test_upsampling_that_never_reads_the_last_row_and_column():
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        rows, columns = (np.minimum(np.arange(3 * n) // 3, n - 2) for n in x.shape[2:])
        return x[:, :, rows][..., columns]

    assert named("upsample_nearest/f32/x3-n1-c4-h6-w5", wrong) == ["last row and column never read"]
