import datetime
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines.exec import engine as programs
from refsd.engines.exec.description import read_description
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64, GGML_CPU, Float16Sums
from refsd.numerics.quantization import Int8Scores, Quantization
from refsd.numerics.tensor import stored
from refsd.weights import recipes

EXAMPLE = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"

SILU = Case("silu", "silu", {"x": Recipe((2, 3))})
INPUTS = {"x": stored(np.arange(6, dtype=np.float32).reshape(2, 3))}

# The body decides what the program does with `request`; `save` writes its output.
PROGRAM = """
import json, os, sys, time

request = json.load(sys.stdin)

def save(**tensors):
    save_file(tensors, request["output"])

if request["request"] == "describe":
    text = {{"protocol": 1, "name": "test", "version": "1", "ops": {{"silu": {{}}, "linear": {{}}}}}}
    open(request["output"], "w").write(json.dumps({{**text, **{description}}}))
    sys.exit()

import numpy as np
from safetensors.numpy import load_file, save_file

x = load_file(request["inputs"])
{body}
"""


def runner():
    def truths(case):
        return Reference(FLOAT64).run(case, case.realize())

    return conform.Runner(judges(), truths, today=datetime.date(2026, 11, 20))


@pytest.fixture
def program(tmp_path):
    """(body, description) -> the engine"""

    def make(body="", description="{}", **options):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(body=body, description=description))
        (found,) = programs.find(f"{sys.executable} {path}", **options)
        assert found.engine is not None, found.why_not
        return found.engine

    return make


def fails(engine, match):
    with pytest.raises(EngineFailure, match=match) as error:
        engine.run(SILU, INPUTS)
    assert "\n" not in str(error.value)


def example(*arguments, model_files=None):
    (found,) = programs.find(" ".join([sys.executable, str(EXAMPLE), *arguments]), model_files)
    assert found.engine is not None, found.why_not
    return found.engine


def test_the_python_example_conforms():
    engine = example()
    assert (engine.name, engine.version) == ("numpy-example", "1.0")
    taken = [case for case in CASES.values() if engine.refuses(case) is None]
    assert len(taken) >= 20
    # Each operation's first and last case: starting Python takes longer than to compute.
    ends = {(case.op, turn): case for turn in (1, -1) for case in taken[::turn]}
    results = conform.run(runner(), [engine], list(ends.values()))
    assert {r.op for r in results} | {"model/esrgan"} == set(engine._description.ops)
    assert [r.reason for r in results if r.status != verdict.PASS] == []


def test_the_example_with_its_bug_fails():
    cases = [CASES["gelu_tanh/f32/bend-x33x77"], CASES["layer_norm/f32/tiny-x33x320"]]
    results = conform.run(runner(), [example("--bug")], cases)
    assert {r.op for r in results if r.status == verdict.FAIL} == {"gelu_tanh", "layer_norm"}


@pytest.mark.parametrize(("arguments", "status"), [((), verdict.PASS), (("--bug",), verdict.FAIL)])
def test_the_example_answers_a_whole_model(tmp_path, arguments, status):
    """It reads the recipe's weights from the file that it is told of."""

    def model_files(model, layout):
        path = tmp_path / f"{layout}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    case = CASES["esrgan/esrgan/odd"]
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    engine = example(*arguments, model_files=model_files)
    (result,) = conform.run(conform.Runner(judges(model_files), lambda case: truth), [engine], [case])
    assert result.status == status, result.reason
    # Its taps are the convolutions: the activation before the second one is wrong.
    place, causes = ("body.0.rdb1.conv2", ("leaky_relu before it: slope half as large",)) if arguments else ("", ())
    assert (result.place, result.causes) == (place, causes), result.reason
    assert ("taps are wrong: body.0.rdb1.conv2, " in result.reason) == bool(arguments), result.reason


def test_the_example_without_eta_is_told_so():
    case = CASES["trajectory/euler_a/karras"]
    (result,) = conform.run(runner(), [example("--bug")], [case])
    assert result.status == verdict.FAIL and "the reference agrees if eta is missing" in result.reason


def test_the_example_answers_stages_and_its_bug_is_named():
    names = ["sigmas/sd-karras-n5", "sigmas/sd-discrete-n7", "guidance/cfg", "guidance/pix2pix"]
    results = conform.run(runner(), [example()], [CASES[f"stage/{name}"] for name in names])
    assert [(r.status, r.reason) for r in results] == [(verdict.PASS, "")] * 4
    (result,) = conform.run(runner(), [example("--bug")], [CASES["stage/sigmas/sd-karras-n5"]])
    assert result.status == verdict.FAIL and result.reason.startswith("timesteps: step 2 is 427, truth 427.48")
    assert "the reference agrees if nearest trained timestep, not a real one" in result.reason


def test_values_of_parameters_are_offered():
    engine = example()
    assert engine.refuses(CASES["stage/sigmas/flux-n5"]) == "numpy-example has no levels flux"
    assert engine.refuses(CASES["stage/guidance/apg"]) == "numpy-example has no form apg"


def test_samplers_and_schedules_are_offered():
    engine = example()
    said = {name: engine.refuses(CASES[f"trajectory/{name}"]) for name in ("heun/karras", "euler_a/simple")}
    assert said == {
        "heun/karras": "numpy-example has no sampler heun",
        "euler_a/simple": "numpy-example has no schedule simple",
    }


def test_types_are_of_values_not_of_indices(program):
    """Ids and masks are taken beside `types` of floats, but where an integer type is named; codes are a storage."""
    texts = {"weights": ["f32"], "types": ["f32"]}
    kinds = {
        "embedding": {"types": ["f32", "q8_0"]},
        "model/clip": texts,
        "model/t5": texts,
        "rope": {"types": ["f32", "i64"]},
        "linear_int8": {"types": ["f32"]},
    }
    engine = program(description=f'{{"ops": {kinds}}}', model_files=lambda model, layout: "none")
    ops = {op: [case for case in CASES.values() if case.op == op] for op in kinds}
    taken = {
        op: sorted(
            {recipe.type for case in cases if engine.refuses(case) is None for recipe in case.inputs.values()}
        )
        for op, cases in ops.items()
    }
    assert taken == {
        "embedding": ["f32", "i32", "q8_0"],
        "model/clip": ["i32"],
        "model/t5": ["i32"],
        "rope": [],
        "linear_int8": [],
    }
    assert {engine.refuses(case) for case in ops["rope"]} == {"test takes no i32 in rope"}


def test_the_request(program, tmp_path):
    engine = program(
        "open(os.path.join(os.environ['KEEP'], 'request.json'), 'w').write(json.dumps(request)); save(y=x['x'])"
    )
    case = Case("linear/blocks", "linear", {"x": Recipe((2, 32)), "weight": Recipe((3, 32), "q8_0")})
    inputs = case.realize()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEEP", str(tmp_path))
        y = engine.run(case, inputs)["y"]
    np.testing.assert_array_equal(y, inputs["x"].data)
    request = json.loads((tmp_path / "request.json").read_text())
    assert request["protocol"] == 1
    assert request["op"] == "linear" and request["params"] == {}
    assert request["types"] == {"x": "f32", "weight": "q8_0"}
    assert request["shapes"] == {"x": [2, 32], "weight": [3, 32]}
    assert not Path(request["output"]).parent.exists()


# What a program can learn without looking for it: its request, its environment, its place and what is there.
LEARN = """
kept = dict(request=request, environment=dict(os.environ), arguments=sys.argv[1:], place=os.getcwd())
kept["there"], kept["above"] = list(os.walk(".")), sorted(os.listdir(".."))
json.dump(kept, open(os.path.join(os.environ["KEEP"], request["case"] + ".json"), "w"))
save(y=x["x"])
"""


def test_nothing_tells_the_case_or_the_store(program, tmp_path, monkeypatch):
    """Case names lead to goldens, and goldens stand in refsd's working folder or where a setting says."""
    keep, place = tmp_path / "keep", tmp_path / "place of the goldens"
    keep.mkdir()
    place.mkdir()
    monkeypatch.chdir(place)
    for name in ("PWD", "OLDPWD", "REFSD_CACHE", "REFSD_SD_CLI"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.setenv("KEEP", str(keep))
    engine = program(LEARN)
    model = ModelRecipe("sd15", tiny=True)
    engine._model_files = lambda model, layout: Path("/models/model.safetensors")
    case = Case("silu/of-a-telling-name", "silu", {"x": Recipe((2, 3))}, model=model)
    for _ in range(2):
        engine.run(case, case.realize())
    first, second = (json.loads(path.read_text()) for path in keep.iterdir())
    assert first["request"]["case"] != second["request"]["case"]
    assert first["place"] != second["place"] and not Path(first["place"]).exists()
    for known in (first, second):
        assert "telling" not in json.dumps(known) and str(place) not in json.dumps(known)
        assert known["there"] == [[".", [], []]] and known["above"] == ["answers", "inputs.safetensors"]
        assert known["place"] == str(Path(known["request"]["output"]).parent)
        assert known["request"]["model"]["file"] == "/models/model.safetensors"


def test_an_engine_that_copies_goldens_by_name_has_none(program, tmp_path, monkeypatch):
    """It looks for a store where it is started, for the case by its name."""
    case = CASES["silu/f32/bend-x33x77"]
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "goldens")
    inputs = case.realize()
    store.put(case, inputs, Reference(FLOAT64).run(case, inputs), "1")
    engine = program(
        "manifest = json.load(open(f'goldens/cases/{request[\"case\"]}.json'))\n"
        "os.link(f'goldens/blobs/{manifest[\"blob\"]}.safetensors', request['output'])"
    )
    with pytest.raises(EngineFailure, match=r"FileNotFoundError: .*'goldens/cases/[0-9a-f]{16}.json'$"):
        engine.run(case, inputs)


def test_a_command_is_relative_to_the_user_s_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import json, sys; request = json.load(sys.stdin)\n"
        "name = open(sys.argv[1].removeprefix('--name=')).read()\n"
        "text = {'protocol': 1, 'name': name, 'version': '1', 'ops': {}}\n"
        "json.dump(text, open(request['output'], 'w'))"
    )
    Path("name.txt").write_text("called so")
    (found,) = programs.find(f"{sys.executable} mine.py --name=name.txt")
    assert found.name == "called so"


def test_blocks_and_bfloat16_travel_as_bytes(program):
    engine = program("save(y=x['weight'].astype(np.float32))")
    case = Case("linear/blocks", "linear", {"x": Recipe((2, 32)), "weight": Recipe((3, 32), "q8_0")})
    inputs = case.realize()
    np.testing.assert_array_equal(engine.run(case, inputs)["y"], inputs["weight"].data.reshape(3, 34))

    half = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    raw = half.tobytes()
    engine = program(
        'header = b\'{"y":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}\'\n'
        f"open(request['output'], 'wb').write(len(header).to_bytes(8, 'little') + header + {raw!r})"
    )
    np.testing.assert_array_equal(engine.run(SILU, INPUTS)["y"], half)


def test_a_crash(program):
    fails(program("print('first'); sys.exit('out of memory')"), r"^ended with exit code 1: out of memory$")
    fails(program("print('assertion failed', flush=True); os.abort()"), r"^ended by SIGABRT: assertion failed$")


def test_no_output(program):
    fails(program("print('done')"), r"^it ended well, but it wrote no output.safetensors \(done\)$")


def test_no_output_is_left_from_before(program, tmp_path):
    engine = program("if not os.path.exists(mark := os.environ['MARK']): open(mark, 'w').close(); save(y=x['x'])")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARK", str(tmp_path / "mark"))
        assert engine.run(SILU, INPUTS)["y"].shape == (2, 3)
        fails(engine, "wrote no output.safetensors")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"no safetensors",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (60).to_bytes(8, "little") + b'{"y":{"dtype":"F32","shape":[9,9],"data_offsets":[0,9999]}}  ',
        (61).to_bytes(8, "little") + b'{"y":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}    ' + b"\0" * 8,
    ],
)
def test_garbage(program, garbage):
    fails(
        program(f"open(request['output'], 'wb').write({garbage!r})"), "^output.safetensors is no safetensors file: "
    )


def test_a_header_s_length_in_the_other_order_is_told(program):
    body = """
header = b'{"y": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}  '
open(request["output"], "wb").write(len(header).to_bytes(8, "big") + header + bytes(4))
"""
    fails(program(body), "no safetensors file .its first 8 bytes, the header's length, are big-endian.: ")


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("f32", "y has the unknown dtype 'f32' .did you mean \"F32\"?."),
        ("float32", "y has the unknown dtype 'float32' .did you mean \"F32\"?."),
        ("<f4", "y has the unknown dtype '<f4', expected one of F64, F32, "),
        ("double", "y has the unknown dtype 'double', expected one of F64, F32, "),
    ],
)
def test_an_unknown_dtype_is_told_with_what_was_meant(program, dtype, told):
    header = f'{{"y":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,4]}}}}'.encode()
    body = f"open(request['output'], 'wb').write(({len(header)}).to_bytes(8, 'little') + {header!r} + b'....')"
    fails(program(body), f"^output.safetensors is no safetensors file: {told}")


def test_plain_numbers_and_json_have_no_header(program):
    for body in (
        "np.ones(9, np.float32).tofile(request['output'])",
        "open(request['output'], 'w').write('[1, 2, 3, 4]')",
    ):
        fails(
            program(body), "no safetensors file: its first 8 bytes are no length of a header: it is plain numbers"
        )


def test_a_type_that_numpy_lacks(program):
    header = b'{"y":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    body = f"open(request['output'], 'wb').write(({len(header)}).to_bytes(8, 'little') + {header!r} + b'..')"
    fails(program(body), "y has type F8_E4M3")


def test_it_takes_too_long(program):
    engine = program("time.sleep(60)")
    engine._program.timeout = 1.0
    fails(engine, r"^no answer after 1 s$")


def test_a_short_time_for_answers_is_none_for_the_description(program):
    engine = program("time.sleep(60)", "(time.sleep(1) or {})", timeout=0.5)
    assert engine.name == "test"
    fails(engine, r"^no answer after 0.5 s$")


def test_it_writes_too_much(program):
    engine = program("save(y=np.zeros(1 << 20))")
    engine._program.max_output = 1 << 20
    fails(engine, r"^it wrote more than 1 MiB$")
    engine = program("\nwhile True: print('x' * 99999)")
    engine._program.max_output = 1 << 20
    fails(engine, r"^it wrote more than 1 MiB$")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("save(z=x['x'])", "output 'y' is missing"),
        ("save(y=x['x'] / (1 + np.exp(-x['x'])), z=x['x'])", "output 'z': not asked for"),
        ("save(y=x['x'].T.copy())", r"shape [3, 2], expected [2, 3]"),
        ("save(y=np.full((2, 3), np.nan, np.float32))", "not finite"),
        ("save(y=x['x'])", "times what is allowed"),
    ],
)
def test_wrong_outputs_do_not_conform(program, body, reason):
    (result,) = conform.run(runner(), [program(body)], [SILU])
    assert result.status == verdict.FAIL
    assert reason in result.reason


def test_declarations(program):
    own = {"name": "mine/eps", "op": "rms_norm", "sets": {"eps": 1e-6}, "what": "another eps", "source": "mine.c"}
    ops = {
        "silu": {"types": ["f16"], "numerics": "ggml-cpu", "deviations": ["sdcpp/gelu-tanh", own]},
        "linear": {"numerics": {"like": "ggml-cpu", "activations": _ACTIVATIONS, "conv": None}},
        "group_norm": {"numerics": {"like": "torch-f32", "one_pass": ["group_norm"]}},
        "attention": {
            "numerics": {"like": "torch-f16", "sums": {"attention": {"step": 16, "run": 64}}},
            "inputs": ["q", "k", "v"],
        },
        "model/flux": {"numerics": {"like": "torch-bf16", "scores": {"query_block": 32, "smooth": False}}},
        "model/unet": {"numerics": {"like": "torch-bf16-sage", "scores": None, "sums": {}}, "weights": ["f32"]},
    }
    engine = program(
        description=repr({"ops": ops, "numerics": "torch-f16"}), model_files=lambda model, layout: Path()
    )
    assert engine.numerics(Case("flux", "model/flux", {})).scores == Int8Scores(32, 64, False)
    assert engine.numerics(Case("unet", "model/unet", {})).scores is None
    assert engine.refuses(SILU) == "test takes no f32 in silu"
    assert engine.refuses(Case("gelu", "gelu", {"x": Recipe((1,))})) == "test has no gelu"
    qkv = dict.fromkeys("qkv", Recipe((1, 2, 1, 2)))
    assert engine.refuses(Case("a", "attention", qkv)) is None
    sinks = Case("b", "attention", {**qkv, "sinks": Recipe((1,))})
    assert engine.refuses(sinks) == "test takes no sinks in attention"
    f16 = Case("c", "model/unet", {}, model=ModelRecipe("sd15", "f16"))
    assert engine.refuses(f16) == "test takes no weights of type f16 in model/unet"
    assert engine.refuses(Case("d", "model/unet", {}, model=ModelRecipe("sd15"))) is None
    assert engine.numerics(SILU) is GGML_CPU
    assert [d.name for d in engine.deviations(SILU)] == ["sdcpp/gelu-tanh", "mine/eps"]
    assert engine.numerics(Case("group_norm", "group_norm", {})).one_pass == ("group_norm",)
    assert engine.numerics(Case("attention", "attention", {})).sums == {"attention": Float16Sums(16, 64)}
    linear = engine.numerics(Case("linear", "linear", {}))
    assert (linear.name, linear.conv, linear.gelu, dict(linear.activations)) == (
        "test",
        None,
        "f16",
        {
            "q8_0": "q8_0",
            "i8": Quantization("int8", "row", rotation=256),
            "f16": Quantization("uint8", "row", zero_point=True),
        },
    )


_ACTIVATIONS = {
    "q8_0": "q8_0",
    "i8": {"type": "int8", "scale": "row", "rotation": 256},
    "f16": {"type": "uint8", "scale": "row", "zero_point": True},
}


def own(op, **sets):
    deviation = {"name": "mine/own", "op": op, "sets": sets, "what": "other"}
    return {"ops": {"silu": {"deviations": [deviation]}}}


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"protocol": 2}, "protocol 2, expected 1"),
        ({"ops": {"no_such": {}}}, "operation 'no_such' is not known: expected one of silu, gelu"),
        ({"ops": {"lineer": {}}}, "operation 'lineer' is not known (did you mean \"linear\"?)"),
        ({"ops": {"model/unett": {}}}, "operation 'model/unett' is not known (did you mean \"model/unet\"?)"),
        ({"ops": {"linear": {"types": ["q80"]}}}, "linear: types 'q80' is not known (did you mean \"q8_0\"?)"),
        ({"ops": {"silu": {"numerics": "fast"}}}, "numerics 'fast' is not known"),
        ({"ops": {"trajectory": {"samplers": ["eulr"]}}}, "trajectory: sampler 'eulr' is not known (did you mean"),
        ({"ops": {"stage/sigmas": {"params": {"engine": ["webui"]}}}}, "stage/sigmas: engine 'webui' is not known"),
        ({"ops": {"conv2d": {"params": {"strides": [1]}}}}, "conv2d: parameter 'strides' is not known"),
        ({"numerics": "torch-fp16"}, "numerics 'torch-fp16' is not known (did you mean \"torch-f16\"?)"),
        ({"numerics": {"like": "float32", "colour": "red"}}, "numerics field 'colour'"),
        ({"numerics": {"compute": 5}}, "numerics compute 5"),
        ({"numerics": {"conv": ["f16"]}}, "numerics conv"),
        ({"numerics": {"activations": {"f16": "f99"}}}, "numerics activations of f16: 'f99' is not known"),
        ({"numerics": {"activations": {"f99": "f16"}}}, "numerics activations of weight type 'f99'"),
        ({"numerics": {"activations": {"f16": "i64"}}}, "numerics activations of f16: 'i64'"),
        ({"numerics": {"one_pass": "group_norm"}}, "numerics one_pass: expected a list of norms"),
        (
            {"numerics": {"one_pass": [["silu"]]}},
            "numerics one_pass ['silu'] is not known: expected one of group_norm",
        ),
        ({"numerics": {"activations": 3}}, "expected weight type -> type"),
        (
            {"numerics": {"activations": {"i8": {"scale": "row"}}}},
            "of i8: no type, expected one of int8",
        ),
        ({"numerics": {"activations": {"i8": {"type": "int7"}}}}, "activations of i8, type 'int7' is not known"),
        (
            {"numerics": {"activations": {"i8": {"type": "f8_e4m3", "zero_point": True}}}},
            "expected zero_point of integers, a scale a row or tensor",
        ),
        ({"numerics": {"activations": {"i8": {"type": "int8", "scale": "column"}}}}, "scale 'column' is not known"),
        ({"numerics": {"activations": {"i8": {"type": "int8", "largest": -1}}}}, "largest -1: expected 0 .. 65504"),
        ({"numerics": {"activations": {"i8": {"kind": "int8"}}}}, "activations of i8, field 'kind' is not known"),
        ({"numerics": {"like": "torch-f16", "sums": {"silu": {}}}}, "numerics sums of 'silu' is not known"),
        ({"numerics": {"scores": {"block": 64}}}, "numerics scores: Object contains unknown field `block`"),
        ({"numerics": {"scores": {"key_block": 0}}}, "numerics scores: expected blocks of 1 token or more"),
        ({"numerics": {"scores": "int8"}}, "numerics scores: Expected"),
        ({"numerics": {"like": "torch-f16", "sums": {"linear": {"step": 0}}}}, "expected step >= 1 and run >= 0"),
        ({"numerics": {"like": "torch-f16", "sums": {"linear": {"steps": 1}}}}, "numerics sums"),
        ({"numerics": {"sums": {"linear": {}}}}, 'have float16 factors: expected products "f16"'),
        ({"ops": {"silu": {"deviations": ["none"]}}}, "deviation 'none'"),
        (own("silu", eps=1e-6), "mine/own sets silu eps, expected one of group_norm eps"),
        (own("gelu", approximate=[]), "sets gelu approximate to [], expected one of none, tanh"),
        (own("group_norm", eps=-1), "sets group_norm eps to -1, expected a number from 0 to 1"),
        (own("group_norm", eps=""), "sets group_norm eps to '', expected a number from 0 to 1"),
        ({"numerics": "FP32"}, "numerics 'FP32' is not known (did you mean \"float32\"?)"),
        ({"numerics": {"like": "float16"}}, "numerics 'float16' is not known (did you mean \"torch-f16\"?)"),
        ({"ops": {"linear": {}, "silu": {"type": []}}}, '`type` - at `$.ops.silu` (did you mean "types"?)'),
        ({"ops": {"silu": {"author": 1}}}, "`author` - at `$.ops.silu`: expected one of types, weights, samplers,"),
        (
            {"ops": {"silu": {"deviations": [{"nme": "x"}]}}},
            '`nme` - at `$.ops.silu.deviations[0]` (did you mean "name"?)',
        ),
        (
            {"ops": {"linear": {}, "model/clip": {"types": "f32"}}},
            "Expected `array | null`, got `str` - at `$.ops.model/clip.types`",
        ),
        ({"ops": 5}, "Expected `object`"),
        (
            {"surprise": 5},
            "unknown field `surprise`: expected one of protocol, name, version, ops, numerics, serve",
        ),
        ({"server": True}, 'unknown field `server` (did you mean "serve"?)'),
        ({"name": "two\nlines"}, "$.name"),
        ({"version": ""}, "$.version"),
        ({"version": 1.0}, "Expected `str`, got `float` - at `$.version`"),
    ],
)
def test_a_wrong_description_is_one_line(program, tmp_path, description, said):
    with pytest.raises(AssertionError):
        program(description=repr(description))
    (found,) = programs.find(f"{sys.executable} {tmp_path / 'program.py'}")
    assert found.engine is None
    assert said in found.why_not and "\n" not in found.why_not


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'{"name": "x", "version": "1", "ops": {}, "numerics": ' + b"[" * 100_000,
        b'{"name": "without a protocol", "version": "1", "ops": {}}',
        b'{"name": "x", "version": "1", "protocol": 1, "ops": {"silu": 5}, "numerics"',
    ],
)
def test_garbage_for_a_description(text):
    with pytest.raises(EngineFailure, match=r"^description.json: "):
        read_description(text)


def test_of_a_description_that_lacks_several_fields_the_protocol_is_told_first():
    with pytest.raises(EngineFailure, match="missing required field `protocol`"):
        read_description(b'{"name": "x", "ops": {}}')


def test_numerics_that_do_not_fit_a_case_are_an_error_of_the_engine(program):
    numerics = {"activations": {"f32": "q8_0"}}
    engine = program("save(y=x['x'])", repr({"ops": {"linear": {"numerics": numerics}}}))
    case = Case("linear/odd", "linear", {"x": Recipe((2, 5)), "weight": Recipe((3, 5))})
    (result,) = conform.run(runner(), [engine], [case])
    assert result.status == verdict.ERROR
    assert result.reason.startswith("the reference cannot compute it under test: ValueError: cannot reshape")


_EMPTY = "(a program starts in an empty folder of its own: "


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("{python} nope.py", "(there is no file nope.py in the folder where refsd was started, {passed_on})"),
        ("{python} sub/nope.py --fast", "{passed_on})"),
        ("{python} -m my.engine", "{empty}to find my.engine from here write env PYTHONPATH=. before it)"),
        ("{python} there.py nope.json", "ended with exit code 1: broken"),
        ("./npm run engine", "{empty}name the project's path, npm --prefix FOLDER)"),
        ("/bin/false", "it said nothing {empty}one that looks for files of its project needs their path)"),
    ],
)
def test_what_may_be_wrong_in_a_command_is_told(tmp_path, monkeypatch, command, ends):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("import sys; sys.exit('broken')")
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'no package.json'\nexit 254\n")
    (tmp_path / "npm").chmod(0o755)
    (found,) = programs.find(command.format(python=sys.executable))
    assert found.why_not.endswith(ends.format(empty=_EMPTY, passed_on="so the word was passed on as it is"))


def test_programs_that_are_none():
    assert "give exec:PROGRAM" in programs.find()[0].why_not
    assert "does not start" in programs.find("./no-such-program")[0].why_not
    assert "exit code 1" in programs.find("/bin/false")[0].why_not
    assert "no closing quotation" in programs.find("'./engine")[0].why_not.lower()
