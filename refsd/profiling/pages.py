"""Every question, by the operation that it asks for."""

from refsd.profiling import attention, attention_codes, few_bits, functions, subnormals
from refsd.profiling.convolution import algorithm
from refsd.profiling.norms import NORMS, squares, variance
from refsd.profiling.products import (
    activations,
    anchored_linear,
    linear,
    pixels,
    plain_linear,
    result,
    weights,
    windows,
    with_halves,
)
from refsd.profiling.question import Probe
from refsd.profiling.stored_weights import TYPES, beside
from refsd.profiling.sums import accumulator, fused, order, rounding

_K = 128  # terms of the sums that are asked about
_ORDERED = 256
_HALF_SUM, _HALF_ACTIVATIONS = "sum, f16 weights", "activations, f16 weights"

PROBES: tuple[Probe, ...] = (
    Probe("linear", "activations", few_bits.activations(activations(plain_linear, "linear"))),
    Probe("linear", "weights", weights(anchored_linear, "linear")),
    Probe("linear", "result", result(linear, "linear")),
    Probe("linear", "sum", accumulator(linear, "linear", _K)),
    *(Probe("linear", f"{kind} weights", beside(kind)) for kind in TYPES),
    *(Probe("linear", f"{kind} weights", few_bits.beside(kind)) for kind in few_bits.TYPES),
    Probe("linear", _HALF_SUM, accumulator(with_halves(linear), "linear", _K, _HALF_SUM)),
    Probe("linear", "order of the sum", order(linear, "linear", _ORDERED)),
    Probe("linear", "rounding", rounding(linear, "linear")),
    Probe("linear", "products", fused(linear, "linear")),
    Probe("linear", "subnormal numbers", subnormals.of_products),
    Probe("conv2d", "activations", activations(windows, "conv2d")),
    Probe("conv2d", _HALF_ACTIVATIONS, activations(with_halves(windows), "conv2d", _HALF_ACTIVATIONS)),
    Probe("conv2d", "weights", weights(windows, "conv2d")),
    Probe("conv2d", "result", result(windows, "conv2d")),
    Probe("conv2d", "sum", accumulator(pixels, "conv2d", _K)),
    Probe("conv2d", _HALF_SUM, accumulator(with_halves(pixels), "conv2d", _K, _HALF_SUM)),
    Probe("conv2d", "order of the sum", order(pixels, "conv2d", _ORDERED)),
    Probe("conv2d", "algorithm", algorithm),
    Probe("attention", "codes of scores", attention_codes.scores),
    Probe("attention", "queries and keys", attention.factors),
    Probe("attention", "values", attention.values),
    Probe("attention", "mask", attention.mask),
    Probe("attention", "scores", attention.scores),
    Probe("attention", "probabilities", attention.probabilities),
    Probe("attention", "sum of values", attention.value_sum),
    *(Probe(op, "types", functions.function(op)) for op in ("gelu", "gelu_tanh", "quick_gelu", "silu")),
    Probe("silu", "tail", functions.tail),
    Probe("silu", "subnormal numbers", functions.flushed),
    Probe("softmax", "types", functions.softmax_sum),
    *(
        Probe(op, name, ask(op, norm))
        for op, norm in NORMS.items()
        for name, ask in (("squares", squares), ("variance", variance))
        if (op, name) != ("rms_norm", "variance")
    ),
    Probe("add", "subnormal numbers", subnormals.of_sums),
    Probe("relu", "NaN", functions.not_a_number),
)
OPS = tuple(dict.fromkeys(probe.op for probe in PROBES))
