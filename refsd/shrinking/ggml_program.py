"""A case of an operation as a C++ program for ggml: the graph that the ggml engine builds, written down.

The builders of refsd/engines/ggml/ops/ make the graph of a `Program` here, which writes down each call in place of
making it. So there is no second description of what an operation is in ggml.
"""

import math
from typing import Any

import numpy as np

from refsd.engines.ggml.graph import type_id
from refsd.engines.ggml.ops import BUILDERS, DIRECT_BUILDERS, FLASH_BUILDERS, REQUESTED_BUILDERS
from refsd.engines.ggml.requests import Request, calls, request_of
from refsd.golden import operations
from refsd.golden.judge import Standard
from refsd.golden.verdict import criteria
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import GGML_CPU
from refsd.numerics.tensor import StoredTensor, stored

# What larger tensors have in numbers is no source code.
_MOST = 1 << 14
_TABLES = {"ggml-flash": FLASH_BUILDERS, "ggml-direct": DIRECT_BUILDERS}
# (function, which of its arguments) -> the enumeration, to which C++ converts no number. Source: ggml.h
_ENUMS = {
    ("ggml_cast", 1): "ggml_type",
    ("ggml_im2col", 9): "ggml_type",
    ("ggml_upscale", 2): "ggml_scale_mode",
    ("ggml_pool_2d", 1): "ggml_op_pool",
}
# function -> its operation, of which a precision can be requested
_REQUESTED = {"ggml_mul_mat": "MUL_MAT", "ggml_flash_attn_ext": "FLASH_ATTN_EXT"}
_STATISTICS = ("rms", "bias", "gain")

_SOURCE = """// {op} by ggml, judged against the answer in float64. Exit code 0: within the bound; 1: not.
//
//   c++ -std=c++17 -I ggml/include reproduce_ggml.cpp -L LIBRARIES -lggml -lggml-cpu -lggml-base -o reproduce_ggml
//
// {params}
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

{data}
static const double truth[] = {{{truth}}};  // {shape}
static const double limit[] = {{{limit}}};  // how far an honest engine may be from it

int main() {{
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    ggml_init_params params = {{ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true}};
    ggml_context * ctx = ggml_init(params);

{graph}

    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, {result});
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_buffer_clear(buffer, 0xFF);  // what nobody writes is NaN
{inputs}
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {{
        std::printf("ggml_backend_graph_compute failed\\n");
        return 1;
    }}
    const int n = {n};
    static {ctype} y[{n}];
    ggml_backend_tensor_get({result}, y, 0, sizeof(y));

    double worst = 0, square = 0, sum = 0, along = 0;
    for (int i = 0; i < n; i++) {{
        const double found = {read};
        const bool same = found == truth[i] || (std::isnan(found) && std::isnan(truth[i])) || std::isinf(limit[i]);
        const double z = same ? 0.0 : (found - truth[i]) / limit[i];  // in units of the bound
        if (!(std::fabs(z) <= 1)) {{
            std::printf("y[%d] = %.9g, expected %.17g +- %.3g\\n", i, found, truth[i], limit[i]);
        }}
        worst = std::fabs(z) <= worst ? worst : std::fabs(z);
        square += z * z;
        sum += z;
        along += truth[i] < 0 ? -z : z;
    }}
    // What an honest engine's errors may have: RMS, mean, and mean in the direction of the truth.
    const bool ok = worst <= 1 && std::sqrt(square / n) <= {rms} && std::fabs(sum / n) <= {bias}
        && std::fabs(along / n) <= {gain};
    std::printf("%s: the largest error is %.3g times the bound\\n", ok ? "ok" : "WRONG", worst);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(backend);
    return ok ? 0 : 1;
}}
"""


class Program:
    """A graph as source code; `put`, `floats` and ggml's functions as refsd/engines/ggml/graph.py has them."""

    def __init__(self, wish: Request | None = None):
        self._wish = wish
        self.lines: list[str] = []
        self.data: list[str] = []
        self.inputs: list[str] = []
        self.ggml = _Functions(self)

    def put(self, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> str:
        if tensor.type in ("f64", "i64"):
            tensor = stored(tensor.data.astype(np.float32 if tensor.type == "f64" else np.int32))
        name = f"data{len(self.data)}"
        ctype, numbers = _literals(tensor)
        self.data.append(f"static const {ctype} {name}[] = {{{numbers}}};  // {tensor.type} {list(tensor.shape)}")
        ne = tuple(reversed(shape or tensor.shape or (1,)))
        sizes = ", ".join(map(str, ne + (1,) * (4 - len(ne))))
        made = self.line(f"ggml_new_tensor_4d(ctx, (ggml_type) {type_id(tensor.type)}, {sizes})")
        self.inputs.append(f"    ggml_backend_tensor_set({made}, {name}, 0, sizeof({name}));")
        return made

    def floats(self, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> str:
        return self.put(stored(np.ascontiguousarray(tensor.values(), np.float32)), shape)

    def line(self, call: str) -> str:
        """Write a call down -> the name of its result."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"    ggml_tensor * {name} = {call};")
        return name

    def __getattr__(self, name: str):
        """ggml_<name> with the context as its first argument."""
        function = f"ggml_{name}"

        def call(*arguments) -> str:
            made = self.line(f"{function}({', '.join(['ctx', *_arguments(function, arguments)])})")
            if self._wish is not None and function in _REQUESTED:
                for requested, (precision, *source) in calls(_REQUESTED[function], self._wish, newest=True):
                    rest = "".join(f", {which}" for which in source)
                    self.lines.append(f"    {requested}({made}, (ggml_prec) {precision}{rest});")
            return made

        return call


class _Functions:
    """ggml's functions that take no context and give nothing back."""

    def __init__(self, program: Program):
        self._program = program

    def __getattr__(self, function: str):
        def call(*arguments) -> None:
            self._program.lines.append(f"    {function}({', '.join(_arguments(function, arguments))});")

        return call


def _arguments(function: str, arguments: tuple[Any, ...]) -> list[str]:
    texts = []
    for i, value in enumerate(arguments):
        if value is None:
            text = "nullptr"
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (float, np.floating)):
            text = _float(value)
        else:
            text = str(value)
        enum = _ENUMS.get((function, i))
        texts.append(f"({enum}) {text}" if enum else text)
    return texts


def _float(value) -> str:
    """A float32 literal."""
    x = np.float32(value)
    if not np.isfinite(x):
        return "NAN" if np.isnan(x) else "INFINITY" if x > 0 else "-INFINITY"
    return f"{x!s}f"


def _double(value: float) -> str:
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return repr(float(value))


def _doubles(y: np.ndarray) -> str:
    return ", ".join(map(_double, y.ravel().tolist()))


def _literals(tensor: StoredTensor) -> tuple[str, str]:
    """The C type of a tensor's elements, and their text; 16-bit floats and blocks as bits."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.type == "f32":
        return "float", ", ".join(_float(x) for x in data.ravel())
    if tensor.type == "i32":
        return "int32_t", ", ".join(map(str, data.ravel().tolist()))
    bits = np.uint16 if data.dtype.itemsize == 2 else np.uint8
    return f"{np.dtype(bits).name}_t", ", ".join(f"{x:#x}" for x in data.reshape(-1).view(bits).tolist())


def source(engine: str, standard: Standard) -> str | None:
    """The program for a case of an operation; None where ggml has none, or where its numbers are too many.

    engine:   judged: of "ggml-flash", "ggml-direct" and "ggml-prec-*" their graph is written, else that of "ggml"
    standard: what it was held against; the bound of another engine's numerics is replaced by that of ggml's
    """
    if not engine.startswith("ggml"):
        standard = standard._replace(numerics=GGML_CPU)
    case, inputs = standard.case, standard.inputs
    wish = request_of(engine)
    table = _TABLES.get(engine, BUILDERS) if wish is None else REQUESTED_BUILDERS
    if case.op not in table or sum(math.prod(t.shape) for t in inputs.values()) > _MOST:
        return None
    program = Program(wish)
    params = operations.complete(case.op, inputs, case.params)
    try:
        result: Any = table[case.op].build(program, inputs, params)  # type: ignore[arg-type]
    except ValueError:  # what ggml does not have
        return None
    half = result.dtype == np.float16
    limit = operations.bound(case.op, standard.numerics, inputs, case.params, standard.truth["y"]).limit
    truth, limit = (_in_memory(case.op, y) for y in (standard.truth["y"], limit))
    return _SOURCE.format(
        op=case.op,
        params=", ".join(f"{name} = {value}" for name, value in params.items()) or "no parameters",
        data="\n".join(program.data),
        truth=_doubles(truth),
        limit=_doubles(limit),
        shape=list(truth.shape),
        graph="\n".join(program.lines),
        result=result.tensor,
        inputs="\n".join(program.inputs),
        n=truth.size,
        ctype="ggml_fp16_t" if half else "float",
        read="ggml_fp16_to_fp32(y[i])" if half else "y[i]",
        **_allowed(standard),
    )


def _allowed(standard: Standard) -> dict[str, str]:
    """What an honest engine's RMS, bias and gain may be, in units of the bound."""
    kind = OperationJudge()
    honest = kind.answer(standard.case, standard.inputs, Arithmetic(standard.numerics))
    (measured,) = kind.measure(standard._replace(honest=honest), honest)
    return {c.name: _double(c.allowed) for c in criteria(measured) if c.name in _STATISTICS}


def _in_memory(op: str, y: np.ndarray) -> np.ndarray:
    """In the order in which ggml's result has it: im2col's columns are rows there."""
    return np.swapaxes(y, 1, 2) if op == "im2col" else y
