"""Open a weight file or its shards, in the format that its content shows."""

import os
from pathlib import Path

from refsd.files.gguf import open_gguf
from refsd.files.json_files import read_json
from refsd.files.pickle_reader import is_pickle, open_pickle
from refsd.files.safetensors import open_safetensors
from refsd.files.stored import EXPECTED, Shards, Weights, shown
from refsd.golden.file_kinds import GGUF, PICKLE, SAFETENSORS, START, ZIP, kind
from refsd.golden.input_file import open_input
from refsd.numerics.errors import BadInput

SHARDS = (".safetensors", ".bin")
MAX_SHARDS = 4096


def open_weights(path: str | Path, mapped: bool = True) -> Weights:
    """Open a .safetensors, .gguf or torch file (.ckpt, .pt, .pth, .bin), or shards by their .index.json.

    mapped: True maps the file and reads its header only; the file must then not change, because the system ends a
            program with SIGBUS when it reads from a mapped file that another process has truncated. False reads
            all of it into memory

    Raises BadInput for a file of another format, or a damaged one.
    """
    path = Path(path)
    with open_input(path, EXPECTED) as file:
        start = file.read(START)
    if path.suffix == ".json" and ".index." in path.name:
        return _open_shards(path, mapped)
    found = kind(start)
    if found == GGUF or path.suffix == ".gguf":
        return open_gguf(path, mapped)
    if found not in ("", SAFETENSORS, PICKLE, ZIP):
        raise BadInput(f"{path}: {found}; {EXPECTED} expected")
    if is_pickle(start, path.suffix):
        return open_pickle(path, mapped)
    return open_safetensors(path, mapped)


def _open_shards(path: Path, mapped: bool) -> Shards:
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
        if not os.path.exists(path.parent / file):
            raise BadInput(f"{path}: shard {shown(file)}, one of {len(files)}, is not there: download it, too")
        opened[file] = open_weights(path.parent / file, mapped)
    where = {
        opened[file].renamed.get(name, name): file
        for name, file in where.items()
        if name not in opened[file].helpers
    }
    absent = [name for name, file in where.items() if name not in opened[file]]
    if absent:
        raise BadInput(
            f"{path}: {len(absent)} tensors are not in the shard that it names, first {shown(absent[0])} in "
            f"{shown(where[absent[0]])}; download it again"
        )
    return Shards(path, {name: opened[file] for name, file in where.items()})
