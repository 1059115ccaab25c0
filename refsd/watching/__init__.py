"""Judge torch while it runs: a diffusers model layer by layer, or any program operation by operation.

    with refsd.watch(pipe.transformer) as report:
        pipe("a lovely cat")

layers.py follows a model's page; mode.py judges every operation from its own inputs. docs/watch.md shows both.
"""

import contextlib
import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, overload

from refsd.golden.wording import needing
from refsd.numerics.errors import BadInput
from refsd.watching.layers import Judged, Report, watch_layers
from refsd.watching.report import Operations

_WAYS = ("layers", "operations")


@overload
def watch(
    module=...,
    calls: int = ...,
    causes: bool = ...,
    show: Callable[[str], Any] | None = ...,
    by: Literal["layers"] = ...,
    numerics: str | None = ...,
) -> contextlib.AbstractContextManager[Report]: ...


@overload
def watch(
    module=...,
    *,
    show: Callable[[str], Any] | None = ...,
    by: Literal["operations"],
    modules: str = ...,
    every: int = ...,
    unique: bool = ...,
    seconds: float = ...,
    memory: float = ...,
    rows: int = ...,
    folder: str | Path | None = ...,
) -> contextlib.AbstractContextManager[Operations]: ...


@contextlib.contextmanager
def watch(
    module=None,
    calls: int = 1,
    causes: bool = True,
    show: Callable[[str], Any] | None = print,
    by: str | None = None,
    modules: str = "*",
    every: int = 1,
    unique: bool = False,
    seconds: float = math.inf,
    memory: float = 2.0**31,
    rows: int = 0,
    folder: str | Path | None = None,
    numerics: str | None = None,
) -> Iterator[Any]:
    """Judge what torch computes inside the `with` block. Yields the report.

    by:     "layers": a diffusers or transformers model of a known class, layer by layer, as the reference computes
            it; "operations": any module, or all that runs if there is none, operation by operation

    By layers:
    calls:  number of calls of each component to judge; further calls only run
    causes: try known bugs as explanations of the first wrong layer, if that takes seconds rather than minutes
    numerics: how the module computes where torch's own operations are replaced: "torch-bf16-sage"; None: as torch

    By operations:
    modules: glob on the names of modules, inside which operations are judged
    every:   judge each n-th call alone
    unique:  judge each operation once for the same shapes, strides and dtypes
    seconds: judge no more after this time of judging, in which known bugs are tried on the first wrong call
    memory:  judge no call whose arguments and results take more bytes in float64
    rows:    judge so many rows of a product or of attention's queries, and filters of a convolution, evenly spread;
             0: all
    folder:  where a program that shows the first wrong call, and the text of an issue, are written; None: nowhere

    show:   called with the report's text at the end; None: do not show it

    By layers, judging a call takes two runs of the reference on the CPU, one of them in float64, and memory for the
    outputs of all layers in one call; the reference uses the module's own weights, so wrongly loaded weights are
    not detected. By operations, each is computed in float64 from the very tensors that torch gave it.

    Raises BadInput for a module that refsd does not run by layers, and for options that do not fit.

    >>> with watch(3.0):  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
    refsd.numerics.errors.BadInput: refsd.watch knows no float; it knows ...
    """
    by = by or ("operations" if module is None else "layers")
    if by not in _WAYS or every < 1 or rows < 0:
        expected = f"{' or '.join(_WAYS)}, every 1 or more, rows 0 or more"
        raise BadInput(f"by {by!r}, every {every}, rows {rows}: expected {expected}")
    of_operations = {
        "modules": modules,
        "every": every,
        "unique": unique,
        "seconds": seconds,
        "memory": memory,
        "rows": rows,
        "folder": folder,
    }
    others = of_operations if by == "layers" else {"calls": calls, "causes": causes, "numerics": numerics}
    defaults = inspect.signature(watch).parameters
    unused = [name for name, value in others.items() if value != defaults[name].default]
    if unused:
        raise BadInput(f"{', '.join(unused)}: by={by!r} has no such option")
    if by == "layers":
        with watch_layers(module, calls, causes, show, numerics) as report:
            yield report
        return
    with needing(["torch"], "torch", "refsd.watch"):
        watched = importlib.import_module("refsd.watching.mode").watched
    with watched(module, (modules, every, unique, seconds, memory, rows), folder, show) as report:
        yield report


__all__ = ["Judged", "Operations", "Report", "watch"]
