"""Opening what a user names: a file or its shards, by its content; and small JSON files."""

import json
from pathlib import Path
from typing import Any

from refsd.golden.errors import BadInput
from refsd.weights.gguf import MAGIC, open_gguf
from refsd.weights.pickle_reader import is_pickle, open_pickle
from refsd.weights.safetensors import open_safetensors
from refsd.weights.stored import Shards, Weights, shown

SHARDS = (".safetensors", ".bin")
MAX_JSON = 2**24  # bytes
MAX_SHARDS = 4096


def open_weights(path: str | Path) -> Weights:
    """Map a .safetensors, .gguf or torch file (.ckpt, .pt, .pth, .bin), or shards by their .index.json.

    Reads the header only. Raises BadInput where the file is not what it should be.
    """
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path}: a folder; a .safetensors, .gguf or .ckpt file expected")
    if path.is_fifo() or path.is_socket() or path.is_char_device():
        raise BadInput(f"{path}: a pipe or a device; a .safetensors, .gguf or .ckpt file expected")
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError as error:
        raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None
    if start.startswith(MAGIC) or path.suffix == ".gguf":
        return open_gguf(path)
    if path.suffix == ".json" and ".index." in path.name:
        return _open_shards(path)
    if is_pickle(start, path.suffix):
        return open_pickle(path)
    return open_safetensors(path)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object from a file. Raises BadInput where it is anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON:
            raise BadInput(f"{path}: {size} bytes of JSON, at most {MAX_JSON} expected")
        content = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}; JSON expected") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: a JSON {type(content).__name__}, an object expected")
    return content


def _open_shards(path: Path) -> Shards:
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise BadInput(f"{path}: weight_map must map tensor names to file names")
    files = sorted(set(where.values()))
    if len(files) > MAX_SHARDS:
        raise BadInput(f"{path}: {len(files)} shards, at most {MAX_SHARDS} expected")
    opened = {}
    for file in files:
        if Path(file).name != file or not file.endswith(SHARDS):
            raise BadInput(f"{path}: shard {shown(file)}: a .safetensors or .bin file in the same folder expected")
        opened[file] = open_weights(path.parent / file)
    where = {name: file for name, file in where.items() if name not in opened[file].helpers}
    absent = [name for name, file in where.items() if name not in opened[file]]
    if absent:
        raise BadInput(
            f"{path}: {len(absent)} tensors are not in the shard that it names, first {shown(absent[0])} in "
            f"{shown(where[absent[0]])}; download it again"
        )
    return Shards(path, {name: opened[file] for name, file in where.items()})
