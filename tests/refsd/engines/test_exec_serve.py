"""One process, many requests: what it saves, what it may not do, what one request leaves behind for the next."""

import datetime
import gc
import sys
import time

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.engines.exec import engine as programs
from refsd.engines.exec.description import read_description
from refsd.engines.exec.program import Program
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure
from refsd.golden.recipe import Recipe
from refsd.golden.repeated_requests import CHANGING, LEFT_OVER
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64

CASES = [Case(f"silu/{n}", "silu", {"x": Recipe((2, n))}) for n in (3, 4, 5)]
DESCRIPTION = (
    b'{"protocol": 1, "name": "served", "version": "1", "serve": true, "ops": {"silu": {"types": ["f32"]}}}'
)
MIB = 1 << 20

# Started by `python -I -S`, without NumPy: `n` counts the requests, `x` is the input, `body` answers.
PROGRAM = """
import array, json, math, os, struct, sys, time

def save(values):
    data = array.array("f", values).tobytes()
    header = {{"y": {{"dtype": "F32", "shape": request["shapes"]["x"], "data_offsets": [0, len(data)]}}}}
    text = json.dumps(header).encode()
    with open(request["output"], "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)

def done(**more):
    print(json.dumps({{"done": request["case"], **more}}), flush=True)

n = 0
for line in sys.stdin:
    request = json.loads(line)
    n += 1
    with open(request["inputs"], "rb") as file:
        data = file.read()
    x = array.array("f", data[8 + struct.unpack("<Q", data[:8])[0] :])
    right = [v / (1 + math.exp(-v)) for v in x]
    {body}
"""
HONEST = "save(right); done()"


@pytest.fixture
def engine(tmp_path):
    """body -> an engine, with little room and time for each request"""

    def make(body, timeout=30.0):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(body="\n    ".join(body.splitlines())))
        program = Program([sys.executable, "-I", "-S", str(path)], timeout, MIB, 8 * MIB)
        return programs.ServingEngine(program, read_description(DESCRIPTION), None)

    return make


def ask(engine, case=CASES[0]):
    """The answer, or the engine's failure in a line."""
    try:
        return engine.run(case, case.realize())["y"]
    except EngineFailure as error:
        assert "\n" not in str(error)
        return str(error)


def right(answer, case=CASES[0]):
    truth = Reference(FLOAT64).run(case, case.realize())["y"]
    return isinstance(answer, np.ndarray) and np.allclose(answer, truth)


def conformed(engine, cases=CASES):
    truth = Reference(FLOAT64)
    runner = conform.Runner(
        judges(), lambda case: truth.run(case, case.realize()), today=datetime.date(2026, 11, 20)
    )
    return conform.run(runner, [engine], cases)


@pytest.mark.smoke
def test_all_requests_go_to_one_process(engine):
    served = engine(HONEST)
    assert all(right(ask(served, case), case) for case in CASES)
    started = engine("save([float(n)] * len(x)); done()")
    assert [ask(started)[0, 0] for _ in range(3)] == [1, 2, 3]


def test_what_takes_long_to_start_is_started_once(engine):
    served = engine("n == 1 and time.sleep(0.5)\n" + HONEST)
    ask(served)
    begun = time.monotonic()
    assert all(right(ask(served)) for _ in range(5))
    assert time.monotonic() - begun < 0.5


@pytest.fixture
def described(tmp_path):
    """body -> the command of a program that also describes itself"""

    def make(body):
        own = f"if request['request'] == 'describe': open(request['output'], 'wb').write({DESCRIPTION!r}); continue"
        path = tmp_path / "described.py"
        path.write_text(PROGRAM.format(body=body).replace("    n += 1", f"    {own}\n    n += 1"))
        return f"{sys.executable} -I -S {path}"

    return make


def test_a_program_says_that_it_serves(described):
    (found,) = programs.find(described(HONEST))
    assert isinstance(found.engine, programs.ServingEngine), found.why_not
    assert [r.status for r in conformed(found.engine)] == [verdict.PASS] * 3


@pytest.mark.parametrize(("body", "code"), [(HONEST, 0), ("save(right if n == 1 else x); done()", 1)])
def test_the_command_asks_again_too(described, tmp_path, monkeypatch, body, code):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["conform", f"exec:{described(body)}", "--cases", "silu/*"])
    assert done.exit_code == code, done.output
    assert ("asked again as the last request" in done.stdout) == bool(code)


# What a second request does -> the line that it gets; the first and the third are answered.
MIBS = "it wrote more than 1 MiB"
TWICE = "it answered twice"
LATE = "no answer after 2 s"
ODD = "its answer is not understood"
FAULTS = {
    "crash": ("os._exit(3)", "ended with exit code 3: it said nothing"),
    "last words": ("print('no memory left', flush=True); os._exit(1)", "ended with exit code 1: no memory left"),
    "signal": ("os.kill(os.getpid(), 11)", "ended by SIGSEGV: it said nothing"),
    "half an answer": ("open(request['output'], 'w').write('12'); os._exit(2)", "ended with exit code 2"),
    "hangs": ("time.sleep(60)", LATE),
    "is silent": ("save(right)", LATE),
    "prints megabytes": ("[print('x' * 99999) for _ in range(30)]; save(right); done()", MIBS),
    "prints a long line": ("sys.stdout.write('y' * (2 << 20)); done()", MIBS),
    "prints without end": ("[print('x' * 9999) for _ in iter(int, 1)]", MIBS),
    "writes megabytes": ("open('big', 'wb').write(bytes(2 << 20)); save(right); done()", MIBS),
    "answers at once twice": (
        "a = json.dumps({'done': request['case']}); print(a + '\\n' + a, flush=True)",
        "it answered twice",
    ),
    "another's answer": (
        'print(\'{"done": "me"}\', flush=True)',
        'the word of its line {"done": WORD} is not the "case" of the request',
    ),
    "no word": ("print('{\"done\": 7}', flush=True)", ODD),
    "broken JSON": ("print('{\"done\": ', flush=True)", ODD),
    "a deep nest": ("print('{\"done\":' + '[' * 50000, flush=True)", ODD),
    "no output": ("done()", "it answered, but it wrote no output.safetensors"),
    "a refusal": ("done(error='no room\\nfor it')", "no room for it"),
    "leaves": ("sys.exit()", "declares serve answers until refsd closes its stdin: it said nothing"),
    "closes its stdin": ("os.close(0); time.sleep(60)", LATE),
    "garbage": (
        "open(request['output'], 'w').write('x' * 99); done()",
        "output.safetensors is no safetensors file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_that_request_s_alone(engine, tmp_path, fault):
    body, line = FAULTS[fault]
    seen = tmp_path / "seen"
    once = (
        f"again = os.path.exists({str(seen)!r})\nif n == 2 and not again:\n    open({str(seen)!r}, 'w').close()\n"
    )
    served = engine(f"{once}    {body}\nelse:\n    {HONEST}", timeout=2.0)
    assert right(ask(served))
    assert line in ask(served)
    assert right(ask(served)) and right(ask(served))


@pytest.mark.parametrize(
    ("crash", "line"), [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 11)", "SIGSEGV")]
)
def test_a_crash_after_the_answer_fails_the_next_request(engine, tmp_path, crash, line):
    seen = tmp_path / "seen"
    once = f"if not os.path.exists({str(seen)!r}):\n    open({str(seen)!r}, 'w').close()"
    served = engine(f"save(right); done()\n{once}\n    print('bye', flush=True)\n    {crash}")
    assert right(ask(served))
    time.sleep(0.3)
    told = ask(served)
    assert told == f"after its last answer it ended {'with ' if crash[3] == '_' else 'by '}{line}: bye"
    assert right(ask(served)) and right(ask(served))


def test_a_request_that_hangs_keeps_what_was_printed(engine):
    (first, *_) = conformed(engine("print('step 3 of 9', flush=True); time.sleep(60)", timeout=1.0))
    assert (first.reason, first.log) == ("no answer after 1 s", ("step 3 of 9",))


NO_LINE = 'it wrote output.safetensors, but no line {"done": CASE} came, with the request\'s "case"; '


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("print('done ' + request['case'], flush=True)", NO_LINE + 'it printed "done CASE"'),
        ("pass", NO_LINE + "it printed nothing"),
        (
            "sys.stdout.write(json.dumps({'done': request['case']})); sys.stdout.flush()",
            NO_LINE + 'it printed "{"done": "CASE"}" without the end of the line',
        ),
        ("open(request['output'], 'r+b').truncate(40)", ""),
    ],
    ids=["no JSON", "silent", "open line", "half an output"],
)
def test_an_output_without_an_answer_line_is_told(engine, monkeypatch, body, hint):
    monkeypatch.setattr("refsd.engines.exec.served._PATIENCE", 0.3)
    served = engine(f"save(right)\n{body}", timeout=1.5)
    hints = set()
    watched = served._asked._supervised.poll
    served._asked._supervised.poll = lambda *seconds: (hints.add(served.hint), watched(*seconds))[1]
    assert ask(served) == f"no answer after 1.5 s{hint and f': {hint}'}"
    assert hints == {"", hint} and served.hint == ""


def test_a_run_tells_of_crashes_after_right_answers(engine):
    results = conformed(engine("save(right); done(); os.kill(os.getpid(), 11)"))
    assert verdict.FAIL in [r.status for r in results]
    assert any("SIGSEGV" in r.reason for r in results)


def test_who_prints_without_a_pause_is_ended_soon(engine):
    """Reading what it prints takes no longer than printing it: it must be ended while it prints."""
    served = engine("while True: os.write(1, b'x' * 65536)")
    served._program.max_output = 64 * MIB
    begun = time.monotonic()
    assert ask(served) == "it wrote more than 64 MiB"
    assert time.monotonic() - begun < 10


def test_what_is_printed_goes_to_no_disk(engine):
    served = engine("import stat; save([float(stat.S_ISFIFO(os.fstat(1).st_mode))] * len(x)); done()")
    assert (ask(served) == 1).all()


def test_who_prints_between_requests_waits_for_the_next(engine):
    served = engine("save(right); done()\nfor _ in range(300): os.write(1, b'y' * 9999 + b'\\n')")
    served._program.max_output = 8 * MIB
    assert all(right(ask(served)) for _ in range(3))


def test_a_refusal_may_be_long(engine):
    served = engine("done(error='no room ' + 'x' * (4 << 20))")
    served._program.max_output = 16 * MIB
    assert ask(served).startswith("no room xxx") and len(ask(served)) < 400


def test_two_answers_that_come_one_after_the_other_fail_the_next_request(engine, tmp_path):
    go, gone = tmp_path / "go", tmp_path / "gone"
    wait = f"[time.sleep(0.01) for _ in range(3000) if not os.path.exists({str(go)!r})]"
    again = f"if os.path.exists({str(go)!r}):\n    done(); os.rename({str(go)!r}, {str(gone)!r})"
    served = engine(f"save(right); done()\n{wait}\n{again}")
    assert right(ask(served))
    go.touch()
    while not gone.exists():
        time.sleep(0.01)
    assert ask(served) == "it had answered the request before this one twice"
    assert right(ask(served))


def test_a_process_that_leaves_between_requests_is_started_again(engine):
    served = engine(HONEST + "; sys.exit()")
    for _ in range(3):
        assert right(ask(served))
        time.sleep(0.05)


def test_answers_are_found_between_other_lines(engine):
    served = engine("print('50 %\\r100 %', end=''); print('{}', file=sys.stderr); save(right); done()")
    assert all(right(ask(served)) for _ in range(3))


def test_a_request_longer_than_a_pipe_goes_through(engine):
    served = engine(HONEST)
    long = Case("silu/long", "silu", CASES[0].inputs, {"note": "x" * 300_000})
    judge = judges().of(long)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(judge), "complete", lambda self, case, inputs: case.params)
        assert isinstance(ask(served, long), np.ndarray)


def test_nothing_is_left_running(engine):
    others = psutil.Process().children(recursive=True)  # of earlier tests, as multiprocessing's resource tracker
    served = engine("os.fork() or time.sleep(60)\n" + HONEST)
    assert right(ask(served))
    running = [one for one in psutil.Process().children(recursive=True) if one not in others]
    assert len(running) >= 2
    del served
    gc.collect()
    _, alive = psutil.wait_procs(running, timeout=10)
    assert alive == []


def test_an_honest_program_conforms_and_its_first_case_is_asked_again(engine):
    served = engine(HONEST)
    asked = []
    run = served.run
    served.run = lambda case, inputs: (asked.append(case.name), run(case, inputs))[1]
    served.run_tapped = lambda case, inputs: (served.run(case, inputs), {})
    assert [r.status for r in conformed(served)] == [verdict.PASS] * 3
    assert asked == ["silu/3", "silu/4", "silu/5", "silu/3"]


def test_the_last_request_is_the_first_one_again(engine):
    served = engine("save([v * (1 if n < 4 else 1.01) for v in right]); done()")
    first, *others = conformed(served)
    assert (first.status, first.causes, [r.status for r in others]) == (
        verdict.FAIL, (LEFT_OVER,), [verdict.PASS] * 2,
    )  # fmt: skip
    assert first.reason.startswith(
        "asked again as the last request of the process, 6 of 6 elements of y differ, first"
    )


def test_a_last_bit_is_no_leftover(engine):
    served = engine("save([v * (1 if n < 4 else 1 + 1e-7) for v in right]); done()")
    assert [r.status for r in conformed(served)] == [verdict.PASS] * 3


def test_the_last_request_may_not_fail_either(engine):
    first, *_ = conformed(engine("n == 4 and os._exit(1); save(right); done()"))
    assert first.status == verdict.FAIL and "asked again as the last request, it fails: ended with" in first.reason


def test_what_fails_in_company_and_conforms_alone_has_that_cause(engine):
    served = engine("save(right if n == 1 else [v + n for v in right]); done()")
    first, second, third = conformed(served)
    assert second.causes == third.causes == (CHANGING, LEFT_OVER)
    assert second.reason.startswith(CHANGING) and second.reason.endswith(
        f"the engine conforms each time: {LEFT_OVER}"
    )
    assert first.causes == (CHANGING, LEFT_OVER)  # asked again at the end


def test_what_fails_alike_in_company_and_conforms_alone_has_that_cause_alone(engine):
    first, second, third = conformed(engine("save(right if n == 1 else [v + 1 for v in right]); done()"))
    assert first.causes == second.causes == third.causes == (LEFT_OVER,)
    assert "asked alone, in a process of its own, the engine conforms" in second.reason


def test_a_race_is_not_what_earlier_requests_leave_behind(engine):
    """Every process has its own noise, so that some fresh one fails too."""
    race = "import random; save([v + (random.random() < 0.8) * random.random() for v in right]); done()"
    assert {r.causes for r in conformed(engine(race))} == {(CHANGING,)}


def test_a_race_that_spares_fresh_processes_is_no_leftover(engine):
    """The process that erred is right again at its fifth request, as none is behind which something is left."""
    served = engine("save([v + n * (n in (2, 3)) for v in right]); done()")
    results = conformed(served)
    assert results[1].causes == (CHANGING,) and LEFT_OVER not in results[1].reason


def test_a_race_that_shows_when_asked_last_is_no_leftover(engine):
    race = "import random; save([v + (n > 3) * random.random() for v in right] if n > 3 else right); done()"
    first, *others = conformed(engine(race))
    assert first.causes[0] == CHANGING and [r.status for r in others] == [verdict.PASS] * 2


def test_what_is_wrong_alone_too_keeps_its_own_cause(engine):
    results = conformed(engine("save([2 * v for v in right]); done()"))
    assert all(r.status == verdict.FAIL and LEFT_OVER not in r.causes for r in results)


@pytest.mark.parametrize("text", ['"yes"', "1", "null"])
def test_serve_is_true_or_false(text):
    with pytest.raises(EngineFailure, match="serve"):
        read_description(DESCRIPTION.replace(b"true", text.encode()))
