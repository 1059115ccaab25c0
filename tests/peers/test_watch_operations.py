"""refsd.watch by operations: no false alarm on diffusers' models; nearly every call is judged."""

import functools
import re

import diffusers
import pytest
import torch
from tiny_modules import MODULES, tiny
from wrong_operations import BUGS, PROGRAMS, Wrong, mixed

import refsd
from refsd.numerics.errors import BadInput

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
diffusers.logging.set_verbosity_error()
watch = functools.partial(refsd.watch, by="operations", show=None)

VARIANTS = {
    "f32": (torch.float32, False),
    "f16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
    "f32-channels-last": (torch.float32, True),
    "bf16-channels-last": (torch.bfloat16, True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODULES)
def test_an_honest_model_is_right(name, variant):
    module, run = tiny(name, *VARIANTS[variant])
    with watch(module) as report:
        run()
    assert report.passed, str(report)
    assert report.total > 300 and report.judged >= 0.95 * report.total, str(report)
    assert "failed" not in str(report)


def test_gradients_and_autocast_are_seen_as_the_device_runs_them():
    module = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.Linear(20, 7))
    with watch() as report:
        with torch.autocast("cpu", torch.bfloat16):
            y = module(torch.randn(3, 5, 12))
        y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16 and report.passed, str(report)
    assert {"addmm", "gelu", "_to_copy", "mean"} <= report.operations


def test_only_the_chosen_calls_are_judged():
    module, run = tiny("sd15")
    with watch(module) as whole:
        run()
    with watch(module, modules="down_blocks.0.*") as some:
        run()
    with watch(module, every=7) as few:
        run()
    with watch(module, unique=True) as once:
        run()
        run()
    with watch(module, seconds=0) as none:
        run()
    with watch(module, memory=1e4) as small:
        run()
    assert 0 < some.judged < whole.judged / 2 and some.total == whole.total
    assert few.judged == whole.total // 7
    assert once.total == 2 * whole.total and 0 < once.judged < whole.judged
    assert none.judged <= 1 and "after the 0 seconds" in str(none)
    assert 0 < small.judged < whole.judged and "larger than the limit of memory" in str(small)


def test_nothing_stays_attached():
    before = torch.nn.modules.module._global_forward_hooks.copy()
    with pytest.raises(RuntimeError), watch(torch.nn.Linear(2, 2)) as report:
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))
    assert torch.nn.modules.module._global_forward_hooks == before
    assert "no operation of torch was called" in str(report) and not report.passed


def test_what_is_no_module_is_refused():
    with pytest.raises(BadInput, match="a float is no module of torch"), watch(3.0):
        pass
    with pytest.raises(BadInput, match="expected layers or operations"), refsd.watch(by="blocks"):
        pass


@pytest.mark.parametrize("name", BUGS)
def test_a_wrong_operation_is_found_placed_and_named(name):
    """The first wrong call is the first that the bug changed."""
    bug = BUGS[name]
    torch.manual_seed(0)
    run = PROGRAMS[bug.program] if bug.program in PROGRAMS else tiny(bug.program, bug.dtype)[1]
    mode = Wrong(bug)
    with mode, watch() as report:
        run()
    first = report.first
    assert first is not None and mode.first is not None, str(report)
    assert first.call.op == bug.op, str(report)
    assert torch.equal(first.call.outputs[0].nan_to_num(9e9), mode.first.nan_to_num(9e9)), str(report)
    said = " ".join(first.causes or [first.verdict.reason])
    assert re.search(bug.words, said), str(report)


def test_most_bugs_are_expected_by_name():
    assert len(BUGS) > 50 and sum(bool(bug.words) for bug in BUGS.values()) >= 0.85 * len(BUGS)


def test_a_program_without_modules_is_right():
    torch.manual_seed(0)
    with watch() as report:
        mixed()
    assert report.passed and report.judged == report.total - 2, str(report)  # two are random numbers
    assert "not judged, random numbers: 2 calls (randn)" in str(report)
