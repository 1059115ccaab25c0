"""Files that are none of refsd's, in every reader's place; and files that are copied instead of mapped."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from refsd.files.formats import open_weights
from refsd.files.json_files import read_json
from refsd.files.writers import Spec, write_safetensors
from refsd.golden import dumps, waivers
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.pipelines.conditioning_images import read_image
from refsd.tokenizers.tokenizer_files import open_tokenizer
from refsd.tokenizers.vocabulary import read_merges
from refsd.weights import open_checkpoint

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4265380512\n"
PAGE = b"<!DOCTYPE html><html><body>Sign in</body></html>"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 30

# Reader -> a name that it takes.
READERS = {
    "safetensors": (open_weights, "a.safetensors"),
    "gguf": (open_weights, "a.gguf"),
    "ckpt": (open_weights, "a.ckpt"),
    "index": (open_weights, "a.safetensors.index.json"),
    "checkpoint": (open_checkpoint, "a.safetensors"),
    "json": (read_json, "config.json"),
    "sentencepiece": (lambda path: open_tokenizer(path, "t5"), "spiece.model"),
    "tokenizer.json": (lambda path: open_tokenizer(path, "qwen3"), "tokenizer.json"),
    "vocab.json": (lambda path: open_tokenizer(path, "qwen3"), "vocab.json"),
    "merges": (read_merges, "merges.txt"),
    "packed merges": (read_merges, "bpe_simple_vocab_16e6.txt.gz"),
    "clip's tokenizer": (read_merges, "tokenizer.json"),
    "picture": (lambda path: read_image("--init-img", path), "a.png"),
    "mask": (lambda path: read_image("--mask", path), "a.png"),
    "waivers": (waivers.read, "waivers.toml"),
    "npy": (dumps.read, "a.npy"),
    "npz": (dumps.read, "a.npz"),
    "bin": (dumps.read, "a.bin"),
    "a folder of npy": (lambda path: dumps.read(path.parent), "a.npy"),
}


def refusal(reader, path):
    with pytest.raises(BadInput) as error:
        reader(path)
    said = str(error.value)
    assert path.name in said and said.isprintable() and len(said) < 600
    return said


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("content", "kind"), [(POINTER, "a git-lfs pointer, not the file"), (PAGE, "a web page, not the file")]
)
def test_what_stands_in_a_files_place_is_named(tmp_path, name, content, kind):
    reader, file = READERS[name]
    (tmp_path / file).write_bytes(content)
    assert kind in refusal(reader, tmp_path / file)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path, name):
    reader, file = READERS[name]
    os.mkfifo(tmp_path / file)
    assert "a pipe; " in refusal(reader, tmp_path / file)


WEIGHTS = ("a.safetensors", "a.gguf", "a.ckpt")


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"error": "Invalid username or password."}', "a server's error message in JSON"),
        (PNG, "a PNG picture"),
        (b"", "the file is empty|an empty file"),
        (bytes(4096), "zeros from its beginning on"),
        (b"Access denied\n", "a text file"),
        (b"\x1f\x8b\x08" + bytes(40), "compressed with gzip"),
    ],
)
def test_weights_that_are_something_else(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=kind):
        open_weights(tmp_path / name)


def test_a_gguf_by_its_name_that_is_another_format(tmp_path):
    (tmp_path / "a.gguf").write_bytes(save({"w": np.zeros(3)}))
    assert "not GGUF, but a safetensors file" in refusal(open_weights, tmp_path / "a.gguf")


def test_other_readers_name_what_they_find(tmp_path):
    for file, reader in (("a.png", READERS["picture"][0]), ("a.npy", dumps.read), ("config.json", read_json)):
        (tmp_path / file).write_bytes(save({"w": np.zeros(3)}))
        assert "a safetensors file" in refusal(reader, tmp_path / file)


@pytest.mark.parametrize("name", ["\0", "a\0.safetensors", "x" * 300 + ".safetensors", ".safetensors" * 100])
def test_shards_of_impossible_names(tmp_path, name):
    import json

    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadInput) as error:
        open_weights(index)
    assert str(error.value).isprintable()


def test_a_shard_that_is_missing(tmp_path):
    index = tmp_path / "a.safetensors.index.json"
    index.write_text('{"weight_map": {"v": "a-1-of-2.safetensors", "w": "a-2-of-2.safetensors"}}')
    save_file({"v": np.ones(3, np.float32)}, tmp_path / "a-1-of-2.safetensors")
    with pytest.raises(BadInput, match=r"a-2-of-2[^ ]*, one of 2, is not there"):
        open_weights(index)


@pytest.mark.parametrize("format", ["safetensors", "gguf", "ckpt"])
def test_weights_in_memory_are_the_same(tmp_path, as_gguf, format):
    arrays = {"a": np.arange(64, dtype=np.float32).reshape(2, 32), "b": np.ones(5, np.float16)}
    if format == "gguf":
        path = as_gguf(arrays)
    elif format == "safetensors":
        path = tmp_path / "a.safetensors"
        save_file(arrays, path)
    else:
        from torch_files import ZIPPED

        path = ZIPPED
    mapped, copied = open_weights(path), open_weights(path, mapped=False)
    assert list(mapped) == list(copied) and mapped.headers == copied.headers
    for name in mapped:
        assert mapped[name].values().tobytes() == copied[name].values().tobytes()
    assert isinstance(copied.content, bytes)


CUT = """
import sys
from pathlib import Path
import numpy as np
from refsd.cli import ending
from refsd.files.formats import open_weights

def app():
    one, other = (open_weights(path) for path in sys.argv[1:3])
    print(np.asarray(other["w"].values()).sum(dtype=int), flush=True)
    open(sys.argv[1], "r+b").truncate(100)
    {read}
    print("read")

sys.exit(ending.run(app))
"""
READS = {
    "NumPy": 'one["w"].values().sum(dtype=int)',
    "a kernel's threads": 'one["q"].values().sum(dtype=int)',
}


@pytest.mark.skipif(sys.platform != "linux", reason="the handler is of Linux")
@pytest.mark.parametrize("read", READS)
def test_a_command_ends_in_one_line_if_its_file_is_cut(read, tmp_path):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        w = np.ones(1_000_000, np.float32)
        tensors = {"w": stored(w), "q": stored(w.astype(ml_dtypes.float8_e4m3fn))}
        write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())
    script = CUT.format(read=READS[read])
    found = subprocess.run([sys.executable, "-P", "-c", script, *paths], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stdout == "1000000\n"
    says = "another program cut the file short while it was read; run the command again once it is whole"
    assert found.stderr == f"refsd: {paths[0]}: {says}\n"


def test_a_file_that_is_cut_while_it_is_used(tmp_path):
    """Mapped, the system ends the program; copied, it goes on. A program of its own each."""
    script = """
import sys
import numpy as np
from safetensors.numpy import save_file
from refsd.files.formats import open_weights
path = sys.argv[1]
save_file({"w": np.ones(1_000_000, np.float32)}, path)
weights = open_weights(path, mapped=sys.argv[2] == "mapped")
open(path, "r+b").truncate(100)
print(weights["w"].values().sum(dtype=int))
"""
    found = {}
    for how in ("mapped", "copied"):
        command = [sys.executable, "-P", "-c", script, str(tmp_path / f"{how}.safetensors"), how]
        found[how] = subprocess.run(command, capture_output=True, text=True)
    assert found["mapped"].returncode == -7, found["mapped"].stderr  # SIGBUS
    assert found["copied"].stdout == "1000000\n", found["copied"].stderr
