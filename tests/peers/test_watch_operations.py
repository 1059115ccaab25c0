"""refsd.watch by operations: no false alarm on diffusers' models; nearly every call is judged."""

import contextlib
import functools
import re

import diffusers
import pytest
import torch
from tiny_modules import MODULES, tiny
from wrong_operations import BUGS, CONV, PROGRAMS, Bug, Wrong, as_on_amx, awkward, mixed

import refsd
from refsd.numerics.errors import BadInput

pytest_plugins = ["pytester"]
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
    with watch(module, rows=3) as thin:
        run()
    assert thin.passed and thin.judged == whole.judged
    assert 0 < some.judged < whole.judged / 2 and some.total == whole.total
    assert few.judged == whole.total // 7
    assert once.total == 2 * whole.total and 0 < once.judged < whole.judged
    assert none.judged <= 1 and "after the 0 seconds" in str(none)
    assert 0 < small.judged < whole.judged and "larger than the limit of memory" in str(small)


@pytest.mark.parametrize(
    "how", [{"mode": "bilinear"}, {"mode": "bicubic"}, {"mode": "bilinear", "antialias": True}]
)
def test_a_resize_by_a_factor_that_no_size_tells_is_judged(how):
    """1.5 times 5 and 7 pixels are 7 and 10: torch's step is 1 / 1.5, and by the sizes' quotient it is wrong."""
    x = torch.randn(2, 3, 5, 7)
    with watch() as report:
        torch.nn.functional.interpolate(x, scale_factor=1.5, **how)
        torch.nn.functional.interpolate(x, scale_factor=(0.7, 1.3), **how)
    assert report.passed and report.judged == 2, str(report)


@pytest.mark.parametrize("name", ["attention: no scale", "conv: filter flipped", "linear: no bias"])
def test_a_few_rows_show_what_is_wrong_everywhere(name):
    module, run = tiny(BUGS[name].program)
    with Wrong(BUGS[name]), watch(module, rows=5) as report:
        run()
    assert report.first is not None and BUGS[name].words in str(report), str(report)


def test_nothing_stays_attached():
    before = torch.nn.modules.module._global_forward_hooks.copy()
    with pytest.raises(RuntimeError), watch(torch.nn.Linear(2, 2)) as report:
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))
    assert torch.nn.modules.module._global_forward_hooks == before
    assert "no operation of torch was called" in str(report) and not report.passed


def test_what_is_no_module_is_refused():
    with pytest.raises(BadInput, match="a float is no module of torch"), watch(3.0):
        pass
    with pytest.raises(BadInput, match="rows -1: expected"), watch(rows=-1):
        pass
    with pytest.raises(BadInput, match="expected layers or operations"), refsd.watch(by="blocks"):
        pass
    with pytest.raises(BadInput, match="calls: by='operations' has no such option"), refsd.watch(calls=2):
        pass
    with pytest.raises(BadInput, match="every, folder: by='layers'"), refsd.watch(3.0, every=2, folder="here"):
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_awkward_calls_are_right(dtype):
    torch.manual_seed(0)
    with torch.no_grad(), watch() as report:
        awkward(dtype)
    assert report.passed and "failed" not in str(report), str(report)
    random, decimals, transposed = 23, 1, 20 * (dtype in (torch.bfloat16, torch.float16))
    assert report.judged == report.total - random - decimals - transposed, str(report)


LARGE = torch.tensor([2**24 + 1, 2**24 + 3, 2**40 + 1])
HONEST = {
    "large integers with float32": lambda: (
        LARGE + torch.ones(1),
        torch.eq(LARGE, LARGE.float()),
        LARGE.sum(dtype=torch.float32),
    ),
    "norms whose squares leave float32": lambda: [
        torch.linalg.vector_norm(torch.ones(7) * s) for s in (1e25, 1e-25)
    ],
    "casts of what the type does not hold": lambda: torch.tensor([-129.0, 300.0, torch.nan]).to(torch.int8),
    "equal numbers sorted": lambda: [torch.tensor([3, 1, 3, 2, 1.0]).sort(descending=d) for d in (False, True)],
    "an element written twice": lambda: torch.zeros(4).scatter(0, torch.tensor([1, 1]), torch.tensor([1.0, 2.0])),
    "sizes of 0": lambda: (
        torch.ones(0, 3) @ torch.ones(3, 2),
        torch.ones(0, 3).softmax(1),
        torch.zeros(3, 0).sum(1),
    ),
    "made of nothing": lambda: (
        torch.arange(0, 1, 0.1),
        torch.arange(5, -1, -2),
        torch.full((2,), 0.1),
        torch.ones(3),
    ),
    "the largest and their places": lambda: [
        function(x)
        for x in (torch.randn(5, 7), torch.tensor([[2.0, 1, 2, 2]]), torch.randn(5, 7).bfloat16())
        for function in (
            lambda x: (x.topk(3), x.topk(2, largest=False, sorted=False), x.argmax(), x.argmin(1, keepdim=True)),
            lambda x: (x.logsumexp(1), (30 * x).logsumexp((0, 1))),
        )
    ],
    "added at an index": lambda: [
        (
            x.clone().index_add_(0, torch.tensor([0, 0, 3]), y),
            x.clone().index_put_((torch.tensor([1, 1, 1]),), y, accumulate=True),
            x.clone().scatter_add_(1, torch.zeros(4, 9, dtype=torch.int64), torch.randn(4, 9).to(x.dtype)),
        )
        for x, y in [(torch.randn(4, 6).to(t), torch.randn(3, 6).to(t)) for t in (torch.float32, torch.bfloat16)]
    ],
    "products": lambda: (torch.randn(3, 40).prod(1), torch.tensor([2, 3, 4]).prod(), torch.randn(3).half().prod()),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_is_right(name):
    with watch() as report:
        HONEST[name]()
    assert report.passed and "failed" not in str(report), str(report)


@pytest.mark.parametrize(
    ("op", "run", "change"),
    [
        ("sort", lambda: torch.tensor([3.0, 1, 2]).sort(), lambda y: (y[0], y[1].flip(0))),
        ("arange", lambda: torch.arange(0, 1, 0.1), lambda y: y[:-1].clone()),
        ("topk", lambda: torch.tensor([3.0, 1, 2]).topk(2), lambda y: (y[0], y[1].flip(0))),
        ("topk", lambda: torch.tensor([3.0, 1, 2]).topk(2), lambda y: (y[0].flip(0), y[1].flip(0))),
        ("argmax", lambda: torch.tensor([3.0, 1, 2]).argmax(), lambda y: y + 2),
        ("logsumexp", lambda: torch.tensor([3.0, 1, 2]).logsumexp(0), lambda y: y * 1.001),
        ("prod", lambda: torch.tensor([3.0, 1, 2]).prod(), lambda y: y * 1.001),
        ("scatter_add", lambda: torch.ones(3).scatter_add(0, torch.tensor([0, 0]), torch.ones(2)), lambda y: y - 1),
        ("ones", lambda: torch.ones(3, 2), lambda y: y[:, :1].clone()),
        ("relu", lambda: torch.ones(3).relu(), lambda y: y[:0].clone()),
        ("mm", lambda: torch.ones(3, 4) @ torch.ones(4, 2), lambda y: y[:0].clone()),
        ("view", lambda: torch.ones(3, 4).view(torch.int16), lambda y: y[:, 1:]),
        ("__rshift__", lambda: torch.tensor([8, 16]) >> 1, lambda y: y + 1),
        ("_int_mm", lambda: torch._int_mm(*(torch.ones(32, 32, dtype=torch.int8),) * 2), lambda y: y - 1),
    ],
)
def test_another_length_or_order_is_wrong(op, run, change):
    with Wrong(Bug("", op, "", lambda func, args, kwargs, y: change(y))), watch() as report:
        run()
    assert report.first is not None and op in report.first.what, str(report)


def test_arguments_that_share_the_memory_that_is_written():
    torch.manual_seed(0)
    x, a = torch.randn(5, 7), torch.randn(4, 6)
    with torch.no_grad(), watch() as report:
        x.add_(x)
        x.mul_(x)
        a[0].add_(a[0])
        torch.add(x, 1, out=x)
    assert report.passed and report.judged == report.total, str(report)


def test_tensors_without_numbers_do_not_end_the_program():
    with torch.no_grad(), watch() as report:
        torch.empty(3, 4, device="meta").view(12)
        torch.eye(3).to_sparse().detach()
        torch.tensor([0, 1, 2], dtype=torch.uint8).sort(descending=True)
        torch.zeros(5, 4).scatter_(1, torch.tensor([[2]]), 1.0)
    assert report.passed, str(report)
    assert {why for why, _ in report.not_judged} >= {"tensors without numbers, or sparse ones"}


def test_a_program_without_modules_is_right():
    torch.manual_seed(0)
    with watch() as report:
        mixed()
    assert report.passed and report.judged == report.total - 2, str(report)  # two are random numbers
    assert "not judged, random numbers: 2 calls (randn)" in str(report)


def run_again(path, mode):
    """Run a written program under the wrong operation; return what it prints."""
    printed = []
    namespace = {"print": lambda *said: printed.append(" ".join(map(str, said)))}
    with mode:
        exec(compile(path.read_text(), str(path), "exec"), namespace)
    return "\n".join(printed)


def test_the_convolution_of_amx_is_found_with_its_reproducer(tmp_path):
    """The wrong sizes are all that is left: H = 13 and W = 4, one channel."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(64, 64, 3, stride=2)
    ).to(torch.bfloat16)
    mode = Wrong(Bug("", CONV, "", as_on_amx))
    with torch.inference_mode(), mode, watch(layers, folder=tmp_path) as report:
        layers(torch.randn(3, 3, 13, 4, dtype=torch.bfloat16))
    first = report.first
    assert first is not None and (first.call.place, report.wrong_calls) == ("2", 1), str(report)
    program = (tmp_path / "reproduce.py").read_text()
    assert len(program.splitlines()) <= 10, program
    assert "torch.randn(1, 1, 13, 4, " in program and "y = F.conv2d(x, weight, None, stride=2)" in program, program
    error, allowed = run_again(tmp_path / "reproduce.py", mode).split()[1::2]
    assert float(error) > 1e36 and float(allowed) < 1
    right, allowed = run_again(tmp_path / "reproduce.py", contextlib.nullcontext()).split()[1::2]
    assert float(right) <= float(allowed)
    issue = (tmp_path / "issue.md").read_text()
    assert issue.startswith("# aten.convolution.default gives wrong numbers (bfloat16, cpu)") and program in issue


@pytest.mark.parametrize(
    "name", ["cat: other order", "silu: relu", "t: not transposed", "masked_fill: mask inverted"]
)
def test_a_program_shows_the_wrong_call(name, tmp_path, monkeypatch):
    """Of an operation without a page, the call itself with drawn numbers; what is drawn shows the bug too."""
    bug = BUGS[name]
    torch.manual_seed(0)
    run = PROGRAMS[bug.program] if bug.program in PROGRAMS else tiny(bug.program, bug.dtype)[1]
    mode = Wrong(bug)
    with mode, watch(folder=tmp_path) as report:
        run()
    assert "reproduce.py shows it" in str(report)
    monkeypatch.chdir(tmp_path)
    wrong, right = (run_again(tmp_path / "reproduce.py", m) for m in (mode, contextlib.nullcontext()))
    assert wrong != right
    if "expected:" in right:
        found, expected = right.split()[1:4:2]
        assert abs(float(found) - float(expected)) < 1e-5 * (1 + abs(float(expected)))


def test_the_first_nan_is_placed_and_an_honest_overflow_is_told_from_a_wrong_one():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.Linear(8, 8)).half()
    with torch.no_grad():
        layers[2].weight.fill_(300.0)
    x = torch.full((2, 8), 100.0, dtype=torch.float16)
    with torch.inference_mode(), watch(layers) as report:
        layers[0].weight.fill_(1.0)
        layers(x)
    assert report.passed and report.not_finite is not None
    assert "in 2: " in report.not_finite[0] and report.not_finite[1]
    assert "an honest one makes it too" in str(report)
    bug = BUGS["attention: NaN"]
    mode = Wrong(bug)
    module, run = tiny(bug.program)
    with mode, watch(module) as report:
        run()
    assert report.not_finite is not None and bug.op in report.not_finite[0] and not report.not_finite[1]
    assert "from finite inputs: call " in str(report) and "; it is wrong" in str(report)


def test_the_option_of_pytest_fails_a_test_with_a_wrong_operation(pytester):
    pytester.makepyfile(
        """
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Wrong(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                y = func(*args, **(kwargs or {}))
                return y + 1 if func._schema.name == "aten::silu" else y

        def test_right(): torch.nn.functional.silu(torch.randn(3, 5))
        def test_fixture(refsd_watch):
            refsd_watch(by="operations")
            torch.nn.functional.silu(torch.randn(3, 5))
        mode = Wrong()
        def setup_module(): mode.__enter__()
        def teardown_module(): mode.__exit__(None, None, None)
        """
    )
    own = ("-p", "refsd.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*own).assert_outcomes(passed=2, errors=1)
    result = pytester.runpytest_subprocess(*own, "--refsd-watch")
    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines(["torch: 1 wrong call; *", "*first: call *, aten.silu.default outside*"])
