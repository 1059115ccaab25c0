"""Collect all cases in CASES, by name: those of each operation, stage and model, and the tables in this folder."""

import fnmatch
import importlib
import re

from refsd.golden.case import Case
from refsd.golden.operations import OPERATIONS
from refsd.golden.wording import did_you_mean
from refsd.models.catalogue import pages
from refsd.numerics.errors import BadInput
from refsd.stages import STAGES

# Prefixes of cases that only a glob with the same prefix selects: models of full size, and models that no engine
# but the reference can compute.
FULL, LONE = "full/", "lone/"
ASKED_FOR = (FULL, LONE)
# Modules of this folder; each defines a list CASES.
_MODULES = (
    "trajectories",
    "sd15",
    "families",
    "texts",
    "unets",
    "pictures",
)


def _collect() -> dict[str, Case]:
    found = [case for operation in OPERATIONS.values() for case in operation.cases]
    found += [case for stage in STAGES.values() for case in stage.cases]
    for module in _MODULES:
        found += importlib.import_module(f"refsd.cases.{module}").CASES
    found += [case for page in pages("cases") for case in page.CASES]
    cases = {case.name: case for case in found}
    if len(cases) < len(found):
        names = [case.name for case in found]
        raise ValueError(f"two cases are called {next(name for name in names if names.count(name) > 1)}")
    return cases


CASES = _collect()


def select(*patterns: str) -> list[Case]:
    """Select the cases whose names match any of the globs ("conv2d/*", "*q4_k*").

    Full-size models ("full/...") and models without a peer ("lone/...") need a glob with the same prefix.
    Raises BadInput for a glob that matches no case.
    """
    chosen: set[str] = set()
    for pattern in patterns or ("*",):
        hidden = tuple(prefix for prefix in ASKED_FOR if not pattern.startswith(prefix))
        matched = {n for n in CASES if fnmatch.fnmatchcase(n, pattern) and not n.startswith(hidden)}
        if not matched:
            usual = sum(not name.startswith(ASKED_FOR) for name in CASES)
            if "," in pattern:
                each = " ".join(f"--cases '{part.strip()}'" for part in pattern.split(","))
                raise BadInput(f"no case matches {pattern!r}: for several globs repeat the option: {each}")
            more = ", ".join(f"--cases '{prefix}*'" for prefix in ASKED_FOR)
            raise BadInput(
                f"no case matches {pattern!r}{meant(pattern)}: `refsd golden list` shows {usual} cases, "
                f"with {more} the others"
            )
        chosen |= matched
    return [case for name, case in CASES.items() if name in chosen]


_FEW = 4  # names that a message suggests, at most


def meant(pattern: str) -> str:
    """Return ' (did you mean "conv2d/*"?)' for a glob of no case: a name that is like it, or its first part."""
    head, slash, rest = pattern.partition("/")
    heads = dict.fromkeys(name.partition("/")[0] for name in CASES)
    begun = (
        [f'"{one}/{rest or "*"}"' for one in heads if head and one.startswith(head)] if head not in heads else []
    )
    if 1 < len(begun) <= _FEW:
        return f" (did you mean {' or '.join(begun)}?)"
    if head in heads and not slash:
        return f' (did you mean "{head}/*"?)'
    alike = sorted(
        {part for name in CASES for part in name.split("/") if _plain(part).startswith(_plain(pattern))}, key=len
    )
    if alike and len(_plain(pattern)) > 2 and not slash:
        return f' (did you mean "*{alike[0]}*"?)'
    if between := _with_a_part_between(pattern):
        return f" (did you mean {' or '.join(between)}?)"
    like_head = did_you_mean(f"{head}/{rest or '*'}", [f"{one}/{rest or '*'}" for one in heads])
    if head in heads:
        of_head = [name for name in CASES if name.startswith(f"{head}/")]
        return did_you_mean(pattern, of_head) or f' (did you mean "{head}/*"?)'
    return did_you_mean(pattern, CASES) or like_head


def _with_a_part_between(pattern: str) -> list[str]:
    """Return the globs, quoted, that match cases with one part more: "conv2d/f16/tiny*" for "conv2d/tiny*"."""
    parts = pattern.split("/")
    names = [name.split("/") for name in CASES]
    globs = {}
    for i in range(1, len(parts)):
        for name in names:
            one = "/".join([*parts[:i], name[i] if len(name) > i else "", *parts[i:]])
            if len(name) == len(parts) + 1 and fnmatch.fnmatchcase("/".join(name), one):
                globs[f'"{one}"'] = None
    return list(globs) if len(globs) <= _FEW else []


def _plain(name: str) -> str:
    """Return the letters and digits of a name: "zimage" for "Z-Image"."""
    return re.sub(r"[\W_]", "", name.lower())
