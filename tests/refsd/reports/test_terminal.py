"""What `refsd conform` prints: one line an engine where all conform, else a table with whole names."""

from pathlib import Path

import msgspec
import pytest

from refsd.golden import verdict
from refsd.golden.repeated_requests import LEFT_OVER
from refsd.golden.report import Report, Result
from refsd.reports.cells import refusals
from refsd.reports.terminal import print_report

LONG = ("onnxruntime@WebGpuExecutionProvider", "stable-diffusion.cpp-flash@Vulkan0")


def report(engines, failing=()):
    results = [
        Result(name, f"{op}/{i}", op, verdict.FAIL if name in failing and i == 0 else verdict.PASS, margin=0.5)
        for name in engines
        for op in ("silu", "attention_with_rope")
        for i in range(3)
    ]
    return Report("0", dict.fromkeys(engines, "1"), [], results)


@pytest.fixture
def printed(capsys, monkeypatch):
    def of(one, width=80, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        print_report(one, Path("pages"), **options)
        return capsys.readouterr().out

    return of


def test_a_line_for_each_engine_where_all_conform(printed):
    one = report(["torch-bf16", "jax"])
    one.results += [Result("jax", "silu/w", "silu", verdict.WAIVED), Result("jax", "x", "x", verdict.REFUSED)]
    said = printed(one)
    assert "\ntorch-bf16: 6 of 6 conform\njax: 7 of 7 conform, 1 waived\n" in said
    assert "attention_with_rope" not in said and "cases by outcome" not in said


def test_a_program_that_conforms_is_asked_for_other_shapes_next(printed):
    said = printed(report(["mine", "jax"]), arguments={"mine": "exec:./my engine", "jax": "jax"})
    assert said.count("next: refsd fuzz") == 1 and "next: refsd fuzz 'exec:./my engine' asks" in said
    assert "fuzz" not in printed(report(["mine"], ["mine"]), arguments={"mine": "exec:./mine"})


def test_an_engine_that_took_no_case_is_not_said_to_conform(printed):
    one = report(["jax"])
    one.engines["idle"] = "1"
    one.results.append(Result("idle", "x", "x", verdict.REFUSED, reason="never"))
    assert "\nidle: took no case\n" in printed(one)


@pytest.mark.parametrize("failing", [(), ("jax",)])
def test_the_table_where_one_fails_or_it_is_asked_for(printed, failing):
    said = printed(report(["torch-bf16", "jax"], failing), as_table=not failing)
    assert "attention_with_rope" in said and "cases by outcome" in said and "6 of 6" not in said


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_names_of_engines_are_whole(printed, width):
    one = report([*LONG, "jax", "a1111"], failing=LONG[:1])
    for options in ({}, {"as_table": True}):
        rows = [line for line in printed(one, width, **options).splitlines() if line[:1] in "┃│"]
        for name in one.engines:
            assert any(name in row for row in rows), name
        assert all("…" not in row for row in rows) and max(map(len, rows)) <= width


def test_a_table_that_is_asked_for_shows_every_operation_of_every_engine(printed):
    names = [f"engine-{i}" for i in range(9)]
    rows = [line for line in printed(report(names), as_table=True).splitlines() if "attention_with_rope" in line]
    assert len(rows) > 1 and sum(row.count("3 (0.50)") for row in rows) == len(names)


@pytest.mark.parametrize("store", ["", "elsewhere"])
def test_the_folder_of_the_goldens_is_named(printed, store):
    end = "conform.json, junit.xml" + ("; goldens: elsewhere\n" if store else "\n")
    assert printed(report(["jax"]), store=store).endswith(end)


def test_cases_of_an_engines_own_operations_that_it_does_not_take_stand_first(printed):
    one = report(["go"])
    one.results += [Result("go", f"silu/q{i}", "silu", verdict.REFUSED, reason="go takes no q8_0") for i in (1, 2)]
    one.results += [Result("go", f"rope/{i}", "rope", verdict.REFUSED, reason="go has no rope") for i in range(9)]
    said = printed(one)
    assert "\ngo does not take 2 of 8 cases of its operations: takes no q8_0 (2)\n" in said
    assert "\ngo does not take 1 other operation (9 cases)\n" in said and "has no rope" not in said
    assert refusals(one, "go") == [("go takes no q8_0", 2), ("go has no rope", 9)], "as in the other forms"


def test_what_earlier_requests_spoil_is_asked_after_those_of_its_kind_not_shrunk(printed):
    def with_leftovers(at):
        one = report(["go"])
        one.results[at] = msgspec.structs.replace(one.results[at], status=verdict.FAIL, causes=(LEFT_OVER,))
        return printed(one, arguments={"go": "exec:./go"})

    last = "attention_with_rope/2"
    assert "next: refsd conform exec:./go --cases 'silu/*'  (alone it conforms)\n" in with_leftovers(1)
    assert f"next: refsd conform exec:./go --cases silu/0 --cases {last}  (alone" in with_leftovers(0)
    assert "refsd shrink" not in with_leftovers(1)
