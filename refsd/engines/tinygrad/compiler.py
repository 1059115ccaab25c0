"""The compiler that tinygrad calls for its CPU code."""

import os
import shutil

MISSING = "its CPU needs clang: install it, or name it in $CC"


def find_clang() -> str | None:
    """Return the path of $CC if it is a clang, else of the plain or the newest clang; None without one."""
    named = os.environ.get("CC", "")
    candidates = (named if "clang" in named else "", "clang", *(f"clang-{n}" for n in range(22, 13, -1)))
    return next((found for name in candidates if name and (found := shutil.which(name))), None)
