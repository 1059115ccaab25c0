"""What the oracle reads of its own: manifests, blobs, waivers; and an engine's answers: tensors, a description."""

import datetime
import functools
import json
import tomllib
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import safetensors
import sample_reports
from kind import Files, Kind, Mutation
from mutations import TEXTS, bytes_changed, json_changed, places, same, value
from safetensors.numpy import save

from refsd.engines.exec import answer_files
from refsd.engines.exec.description import read_description
from refsd.golden import waivers
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.golden.report import Step
from refsd.golden.store import Manifest, Store
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.processor import CPU_FEATURES
from refsd.reports import stored

# A store: two goldens of one blob's folder

CASES = {
    case.name: case
    for case in (
        Case("silu/a", "silu", {"x": Recipe((2, 3))}),
        Case("linear/b", "linear", {"x": Recipe((2, 4), offset=1.5), "weight": Recipe((3, 4))}, {"p": 999}),
    )
}


def _stores(folder: Path) -> dict[str, Files]:
    store = Store(folder / "store")
    for case in CASES.values():
        store.put(case, case.realize(), {"y": np.arange(6.0).reshape(2, 3)}, "0")
    files = {str(p.relative_to(store.root)): p.read_bytes() for p in store.root.rglob("*") if p.is_file()}
    return {"plain": {f"store/{name}": content for name, content in files.items()}}


def _mutate_store(rng: Random, files: Files) -> Mutation:
    """A manifest as JSON, a blob's bytes, or the folder itself."""
    name = rng.choice([name for name in files if name.endswith((".json", ".safetensors"))])
    content = files[name]
    assert isinstance(content, bytes)
    if rng.random() < 0.15:
        what = rng.choice(["gone", "beside", "swap"])
        changed = dict(files)
        if what == "gone":
            del changed[name]
        elif what == "beside":
            changed[name.replace(".", "2.", 1)] = content
        else:
            changed[name] = files[rng.choice([other for other in files if other != name])]
        return Mutation(changed, f"{what} {name}", changed != files)
    if name.endswith(".json"):
        raw, what, changes = json_changed(rng, content)
        return Mutation({**files, name: raw}, f"{name}: {what}", changes and _manifest(raw) != _manifest(content))
    raw, what = bytes_changed(rng, content)
    return Mutation({**files, name: raw}, f"{name}: {what}", raw != content)


def _manifest(text: bytes) -> Manifest | None:
    """Its meaning: a field that is not there has its default. Who made it, and where, is told and not judged."""
    try:
        return msgspec.structs.replace(msgspec.json.decode(text, type=Manifest), generator={})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_store(folder: Path):
    return sorted(
        (problem.kind, problem.what.replace(str(folder), "")) for problem in Store(folder / "store").verify(CASES)
    )


# Waivers

WAIVERS = """
[[waiver]]
cases = "layer_norm/*"
reason = "theirs"
expires = 2027-03-31
cause = "eps*"

[[waiver]]
name = "{0}"
reason = "upstream issue 123"
expires = 2027-03-31
engine = "sdcpp*"
cases = "model/*"

[[waiver]]
name = "{1}"
reason = "ours"
expires = 2027-04-01
"""


def _waivers(folder: Path) -> dict[str, Files]:
    return {"plain": {"w.toml": WAIVERS.format(*sorted(DEVIATIONS)[:2]).encode()}}


def _mutate_waivers(rng: Random, files: Files) -> Mutation:
    text = bytes(files["w.toml"]).decode("utf-8", "replace")  # type: ignore[arg-type]
    kind = rng.choice(["value", "value", "key", "line", "bytes", "nested"])
    if kind == "bytes":
        changed, what = bytes_changed(rng, text.encode())
        return Mutation({"w.toml": changed}, what)
    lines = text.splitlines()
    i = rng.choice([i for i, line in enumerate(lines) if line])
    if kind == "line":
        how = rng.choice(["gone", "twice", "noise"])
        lines[i : i + 1] = {
            "gone": [],
            "twice": [lines[i]] * 2,
            "noise": [rng.choice(["=", "x = 1", "[waiver]", "]"])],
        }[how]
        return Mutation({"w.toml": "\n".join(lines).encode()}, f"{how} line {i}", True)
    if kind == "nested":
        return Mutation({"w.toml": (text + "\nx = " + "[" * 50_000).encode()}, "50000 arrays", True)
    if " = " not in lines[i]:
        return Mutation({"w.toml": text.replace("[[waiver]]", "[[waivers]]", 1).encode()}, "waivers", True)
    key, old = lines[i].split(" = ", 1)
    if kind == "key":
        key = rng.choice(["nme", "", "name", "expires", "engines", "\u202ename", f'"{key}"'])
    else:
        strings = [json.dumps(text) for text in TEXTS]
        old = rng.choice(
            [*strings, "1", "true", "2027-13-01", "1979-05-27T07:32:00Z", "0001-01-01", "[]", "nan", "'''", "{}"]
        )
    lines[i] = f"{key} = {old}"
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    return Mutation({"w.toml": raw}, lines[i][:60], _toml(raw) != _toml(text.encode()))


def _toml(raw: bytes):
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_waivers(folder: Path):
    return [msgspec.to_builtins(waiver) for waiver in waivers.read(folder / "w.toml")]


def _second_waivers(folder: Path):
    table = tomllib.loads((folder / "w.toml").read_text("utf-8"))
    if set(table) - {"waiver"}:
        raise ValueError(f"{set(table)}")
    found = []
    for entry in table.get("waiver", []):
        plain = {"name": "", "engine": "*", "cases": "*", "cause": "*", "when": ""}
        if set(entry) - {*plain, "reason", "expires"} or type(entry["expires"]) is not datetime.date:
            raise ValueError(str(entry))
        whole = {**plain, **entry, "expires": str(entry["expires"])}
        if whole["when"] not in ("", *CPU_FEATURES):
            raise ValueError(str(entry))
        known = whole["name"] in DEVIATIONS and whole["cause"] == "*"
        of_cases = not whole["name"] and whole["cases"] != "*"
        if not (known or of_cases) or not entry["reason"].strip() or entry["expires"].year == 1:
            raise ValueError(str(entry))
        found.append(whole)
    return found


# A report of conform, which --baseline, --last-failed and diff read

REPORT = sample_reports.report(
    sample_reports.fails("clip/a", "eps", way=[Step("layers.0", "wrong", 2.0)], nearest=sample_reports.NEAR),
    sample_reports.result("silu/b"),
)


def _mutate_report(rng: Random, files: Files) -> Mutation:
    content = bytes(files["r.json"])  # type: ignore[arg-type]
    changed, what = bytes_changed(rng, content) if rng.random() < 0.3 else json_changed(rng, content)[:2]
    return Mutation({"r.json": changed}, what)


# An engine's answers

OUTPUT = {"y": np.arange(6, dtype=np.float32).reshape(2, 3), "z": np.ones(4, np.float16)}


def _mutate_answer(rng: Random, files: Files) -> Mutation:
    content = bytes(files["output.safetensors"])  # type: ignore[arg-type]
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.5:
        changed, what = bytes_changed(rng, content, 8 + length)
        return Mutation({"output.safetensors": changed}, what)
    header, what, _ = json_changed(rng, content[8 : 8 + length])
    return Mutation(
        {"output.safetensors": len(header).to_bytes(8, "little") + header + content[8 + length :]}, what
    )


def _read_answer(folder: Path):
    tensors = answer_files.read_tensors((folder / "output.safetensors").read_bytes(), "output.safetensors")
    return {name: [str(y.dtype), list(y.shape), y.tobytes().hex()] for name, y in tensors.items()}


DESCRIPTION = {
    "protocol": 1,
    "name": "engine",
    "version": "1.0",
    "numerics": {"like": "ggml-cpu", "conv": None, "activations": {"q8_0": "q8_0", "f16": "f16"}},
    "ops": {
        "silu": {},
        "linear": {"types": ["f32", "q8_0"], "numerics": "torch-f16"},
        "gelu_tanh": {
            "deviations": [{"name": "n", "op": "rms_norm", "sets": {"eps": 1e-6}, "what": "w", "source": "s"}]
        },
        "trajectory": {"samplers": ["euler"], "schedules": ["karras"], "numerics": {"like": "torch-bf16"}},
        "model/unet": {},
    },
}


def _mutate_description(rng: Random, files: Files) -> Mutation:
    if rng.random() < 0.5:
        changed, what, changes = json_changed(rng, bytes(files["d.json"]))  # type: ignore[arg-type]
        return Mutation({"d.json": changed}, what, changes)
    tree = json.loads(files["d.json"])  # type: ignore[arg-type]
    path = rng.choice([path for path in places(tree) if path and path[0] in ("numerics", "ops")])
    parent = functools.reduce(lambda at, key: at[key], path[:-1], tree)
    words = [
        "float32",
        "ggml-cpu",
        "f16",
        "bf16",
        "f32",
        None,
        "q4_k",
        "im2col",
        "gelu_erf",
        "silu",
        "ggml/gelu-f16",
    ]
    parent[path[-1]] = rng.choice([*words, value(rng, parent[path[-1]])])
    raw = json.dumps(tree).encode()
    return Mutation({"d.json": raw}, "/".join(map(str, path)), not same(tree, json.loads(files["d.json"])))  # type: ignore[arg-type]


def _read_description(folder: Path):
    """What refsd has understood, written as the program wrote it."""
    said = read_description((folder / "d.json").read_bytes())
    offers = {}
    for op, offer in said.ops.items():
        deviations = [repr(deviation) for deviation in said.deviations_of(op)]
        offers[op] = [offer.types, offer.samplers, offer.schedules, repr(said.numerics_of(op)), deviations]
    return [said.name, said.version, list(offers), offers]


STORES = Kind(
    "goldens",
    _stores,
    _mutate_store,
    _read_store,
    None,
    lambda folder: [
        ["golden", "verify", str(folder / "store"), "--cases", "silu/*"],
        ["golden", "show", "silu", "--store", str(folder / "store")],
    ],
)
WAIVED = Kind("waivers", _waivers, _mutate_waivers, _read_waivers, _second_waivers)
REPORTS = Kind(
    "reports",
    lambda folder: {"plain": {"r.json": stored.encode(REPORT)}},
    _mutate_report,
    lambda folder: msgspec.to_builtins(stored.read(folder / "r.json")),
    None,
    lambda folder: [["diff", str(folder / "r.json"), str(folder / "r.json")]],
)
ANSWERS = Kind(
    "answers",
    lambda folder: {"plain": {"output.safetensors": save(OUTPUT)}},
    _mutate_answer,
    _read_answer,
    lambda folder: {
        name: _plain(entry) for name, entry in safetensors.deserialize((folder / "output.safetensors").read_bytes())
    },
)
DESCRIPTIONS = Kind(
    "descriptions",
    lambda folder: {"plain": {"d.json": json.dumps(DESCRIPTION).encode()}},
    _mutate_description,
    _read_description,
)

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"}
_DTYPES |= {
    f"{'U' if sign else 'I'}{n}": f"{'u' if sign else ''}int{n}" for sign in (0, 1) for n in (8, 16, 32, 64)
}


def _plain(entry) -> list:
    return [_DTYPES[entry["dtype"]], list(entry["shape"]), bytes(entry["data"]).hex()]
