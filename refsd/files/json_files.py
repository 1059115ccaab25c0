"""Read small JSON files."""

import json
from pathlib import Path
from typing import Any

from refsd.golden.file_kinds import JSON, START, TEXT, kind
from refsd.golden.input_file import read_input
from refsd.numerics.errors import BadInput

MAX_JSON = 2**24  # bytes


def read_json(path: Path, most: int = MAX_JSON) -> dict[str, Any]:
    """Read a JSON object from a file of at most `most` bytes. Raises BadInput for anything else."""
    data = read_input(path, most, "JSON")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        found = kind(data[:START])
        if found not in ("", JSON, TEXT):
            raise BadInput(f"{path}: {found}; JSON expected") from None
        if isinstance(error, UnicodeDecodeError):
            raise BadInput(f"{path}: not UTF-8 at byte {error.start}; JSON expected") from None
        raise BadInput(f"{path}: not JSON ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: a JSON {type(content).__name__}, an object expected")
    return content
