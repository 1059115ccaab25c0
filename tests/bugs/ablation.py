"""Which finder of refsd/causes earns its place: mark causes with the finder that gave them, and switch finders off.

A finder is a module; its functions give phrases, alone or with answers. Here each function is replaced, wherever it
was imported, by one that writes the module's name behind its phrases, or that finds nothing.
"""

import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Module of refsd.causes -> its functions that give causes.
FINDERS: dict[str, tuple[str, ...]] = {
    "generic.description": ("describe",),
    "generic.fitted_causes": ("fitted_causes",),
    "generic.moved_values": ("rearranged", "stored_in_another_order"),
    "generic.other_shapes": ("other_shape",),
    "generic.sequences": ("sequence_difference",),
    "generic.simple_relations": ("formula", "limited", "coarser"),
    "model.rearranged": ("left_out", "parts_otherwise", "joined_otherwise"),
    "operation.block_parts": ("wrong_values",),
    "operation.code_values": ("code_values", "other_layouts", "grid_entries", "other_indices"),
    "operation.fitted_constants": ("fitted",),
    "operation.function_steps": ("other_functions", "ranges", "straight_lines"),
    "operation.generated_mutants": ("generated", "simplest"),
    "operation.memory_layouts": ("of_strides", "of_other_strides", "of_groups", "of_tokens"),
    "operation.other_entries": ("other_entries",),
    "operation.overflows": ("overflows",),
    "operation.precisions": ("in_precisions",),
    "operation.product_steps": ("rope_steps", "times_steps", "other_tokens"),
    "operation.product_terms": ("product_terms",),
    "operation.row_sums": ("row_sums", "softmax_sums"),
    "operation.softmax_weights": ("key_counts",),
    "operation.small_floats": ("misread_floats",),
    "operation.steps": ("stepwise", "bordered"),
    "stage.candidates": ("settings", "exchanged"),
    "stage.causes": ("searched_causes",),
    "stage.draws": ("other_draws", "redrawn"),
    "stage.elsewhere": ("elsewhere", "wrong_term", "constant_in_part", "last_resorts"),
    "stage.looks": ("output_causes",),
    "stage.members": ("member_causes",),
    "trajectory.changed_solvers": ("changed_solvers", "changed_weights"),
    "trajectory.moved_history": ("moved_history",),
    "trajectory.diagnose": ("_sigma_causes", "_at_the_end", "_other_stream", "_not_finite", "_other_calls"),
}
_MARK = re.compile("\x1e([^\x1f]*)\x1f")


def unmarked(cause: str) -> str:
    """Return a cause as users see it."""
    return _MARK.sub("", cause)


def finder_of(cause: str) -> str:
    """Return the innermost finder that gave a cause; "lists" where none did."""
    found = _MARK.search(cause)
    return found[1] if found else "lists"


def lines_of(finder: str) -> int:
    path = import_module(f"refsd.causes.{finder}").__file__
    assert path is not None
    return len(Path(path).read_text().splitlines())


@contextmanager
def marked(seconds: dict[str, float], off: str = "") -> Iterator[None]:
    """Mark causes within the block. seconds: is filled for each finder; off: the finder that finds nothing"""
    with ExitStack() as stack:
        for module, names in FINDERS.items():
            of = import_module(f"refsd.causes.{module}")
            for name in names:
                right = getattr(of, name)
                other = _nothing(right) if module == off else _marking(module, right, seconds)
                _replace(stack, right, other)
        yield


def _replace(stack: ExitStack, right: Callable, other: Callable) -> None:
    """Replace a function under every name and in every table of refsd that holds it."""
    modules = [m for name, m in sys.modules.items() if name.startswith("refsd.") and m is not None]
    for module in modules:
        for name, value in [*vars(module).items()]:
            if value is right:
                stack.enter_context(patch.object(module, name, other))
            elif isinstance(value, dict) and any(one is right for one in value.values()):
                keys = [key for key, one in value.items() if one is right]
                stack.enter_context(patch.dict(value, dict.fromkeys(keys, other)))
            elif isinstance(value, tuple) and any(one is right for one in value):
                stack.enter_context(
                    patch.object(module, name, tuple(other if one is right else one for one in value))
                )


def _nothing(right: Callable) -> Callable:
    kind = str(inspect.signature(right).return_annotation)
    empty: Any = "" if kind == str(str) else None if "None" in kind else ()
    return lambda *arguments, **named: [] if kind.startswith("list") else iter(()) if "Iterator" in kind else empty


def _marking(module: str, right: Callable, seconds: dict[str, float]) -> Callable:
    mark = f"\x1e{module}\x1f"

    def with_mark(found: Any) -> Any:
        if isinstance(found, str):
            return found + mark if found else found
        if isinstance(found, list):
            return [with_mark(one) for one in found]
        if hasattr(found, "_replace"):
            first = found._fields[0]
            return found._replace(**{first: with_mark(getattr(found, first))})
        if isinstance(found, tuple):
            return (with_mark(found[0]), *found[1:])
        return found

    def each(found: Iterator[Any]) -> Iterator[Any]:
        while True:
            began = time.perf_counter()
            try:
                one = next(found)
            except StopIteration:
                return
            finally:
                seconds[module] = seconds.get(module, 0.0) + time.perf_counter() - began
            yield with_mark(one)

    def called(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        found = right(*arguments, **named)
        seconds[module] = seconds.get(module, 0.0) + time.perf_counter() - began
        return each(found) if inspect.isgenerator(found) else with_mark(found)

    return called


def worth(outcomes: Iterable[Any], without: Mapping[str, Any], seconds: dict[str, float]) -> str:
    """Return a table of the finders: what each names, what nothing else names, what it names wrongly.

    outcomes: of every bug, with all finders; without: bug -> its outcome without the finder that named it
    """
    outcomes = [*outcomes]
    lines = ["| finder | lines | names | nothing else names | wrongly | seconds |", "|---|---|---|---|---|---|"]
    for finder in ("lists", *FINDERS):
        own = [o for o in outcomes if o.finder == finder and o.cause]
        right = [o for o in own if o.named]
        lost = [o.id for o in right if o.id in without and not without[o.id].named]
        wrong = [o.id for o in own if not o.named]
        alone = "" if finder == "lists" else f"{len(lost)}{': ' * bool(lost)}{', '.join(lost)}"
        size = "" if finder == "lists" else str(lines_of(finder))
        spent = f"{seconds.get(finder, 0):.0f}"
        lines.append(f"| {finder} | {size} | {len(right)} | {alone} | {', '.join(wrong) or 0} | {spent} |")
    return "\n".join(lines)
