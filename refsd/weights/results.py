"""Recognise files that refsd wrote and that hold no weights: results of its commands, and goldens."""

import re
from pathlib import Path

from refsd.files.stored import Weights
from refsd.numerics.printable import printable

_COMMANDS = {f"refsd {name}" for name in ("forward", "noise", "run-onnx", "tokenize", "txt2img")}
# Keys of the metadata that say of what the results are.
_OF = ("component", "family", "model", "like", "numerics")
_BLOB = re.compile(r"[0-9a-f]{64}")


def results(weights: Weights) -> str | None:
    """Return what a file of results is, in words; None for any other file."""
    tool = str(weights.metadata.get("tool", ""))
    if tool in _COMMANDS:
        of = ", ".join(f"{key} {weights.metadata[key]}" for key in _OF if weights.metadata.get(key))
        return printable(f"results of `{tool}`" + (f" ({of})" if of else ""), 200)
    return _golden(weights.path)


def _golden(path: Path) -> str | None:
    """Find the case whose manifest names a blob of a store of goldens."""
    cases = path.parent.parent / "cases"
    if path.parent.name != "blobs" or not _BLOB.fullmatch(path.stem) or not cases.is_dir():
        return None
    of = (file for file in sorted(cases.rglob("*.json")) if path.stem in file.read_text("utf-8", errors="replace"))
    manifest = next(of, None)
    if manifest is None:
        return "an answer in a store of goldens, of no case that is left there"
    name = manifest.relative_to(cases).with_suffix("").as_posix()
    return printable(f"the golden of {name} (`refsd golden show {name}` describes it)", 200)
