"""The site builds without a warning, every link of it leads somewhere, and it asks the network for nothing."""

import ast
import re
from pathlib import Path

import code_pages
import diagrams
import drawing
import pytest
from check_links import wrong_links

from refsd.cases import CASES
from refsd.components.data_flow import Run, trace
from refsd.golden.operations import OPERATIONS
from refsd.models import flux as flux_model

pytestmark = pytest.mark.site

# What a student seeks -> pages that show it.
SOUGHT = {
    "Winograd": ("notebooks/01_convolution_to_winograd.html", "code/kernels/conv2d_winograd.py.html"),
    "Q4_K": ("code/kernels/quant/q4_k.py.html", "learn/block.html"),
    "LoKr": ("notebooks/04_lokr_without_the_product.html", "code/kernels/adapters/lokr.py.html"),
    "a Flux block": (
        "notebooks/06_a_flux_block.html",
        "learn/diagrams/flux.html",
        "code/refsd/models/flux.py.html",
    ),
    "the API": ("lookup/api.html",),
}


@pytest.mark.parametrize("sought", SOUGHT)
def test_two_clicks_lead_from_the_front_page_to_what_a_student_seeks(site, sought):
    clicks = clicks_from(site, "index.html")
    assert all(clicks.get(page, 99) <= 2 for page in SOUGHT[sought])
    assert min(clicks[page] for page in SOUGHT[sought]) == 1


def clicks_from(site: Path, start: str) -> dict[str, int]:
    """Count the clicks from a page to every page that two clicks reach."""
    clicks = {start: 0}
    for n in (1, 2):
        for name in [page for page, so_far in clicks.items() if so_far == n - 1]:
            text = (site / name).read_text(encoding="utf-8")
            for link in re.findall(r'href="([^"#:]+\.html)', text):
                page = ((site / name).parent / link).resolve().relative_to(site.resolve()).as_posix()
                clicks.setdefault(page, n)
    return clicks


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text), path


def test_equations_are_mathml(site):
    text = (site / "notebooks" / "01_convolution_to_winograd.html").read_text(encoding="utf-8")
    assert text.count("<math ") >= 10 and "$$" not in text


@pytest.fixture(scope="module")
def flux():
    return trace(CASES["flux-dev/flux/between"])


def test_a_diagram_holds_every_operation_that_ran(flux):
    assert [s.op for s in flux.steps].count("attention") == 3, "a double block and two single ones"
    drawn = "".join(diagrams.figures(flux, "flux-dev/flux/between", "FLUX.1"))
    assert "published: 19" in drawn and "published: 38" in drawn
    assert drawn.count(">attention</text>") == 2, "one in each kind of block"
    for block in diagrams.kinds(flux).values():
        nodes, _ = diagrams.inside(flux, block)
        labels = [node.label for node in nodes if node.kind not in ("input", "moved")]
        assert labels == [flux.steps[i].op for i in block.members]


@pytest.mark.parametrize("case", [case for _, _, case, _ in diagrams.MODELS])
def test_the_shape_on_an_arrow_is_that_which_the_operation_takes(case):
    run, checked = trace(CASES[case]), 0
    for block in diagrams.kinds(run).values():
        nodes, arrows = diagrams.inside(run, block)
        boxes = [n for n, node in enumerate(nodes) if node.kind not in ("input", "moved")]
        for n, i in zip(boxes, block.members, strict=True):
            if nodes[n].kind in ("norm", "product"):
                taken = [nodes[a.source].shape for a in arrows if a.target == n and a.label == "x"]
                assert taken == ["\u00d7".join(map(str, run.steps[i].given[0][1]))], run.steps[i].name
                checked += 1
        assert all(arrow.source < arrow.target for arrow in arrows)
    assert checked > 9


def test_joined_streams_and_skips_enter_a_block_apart(flux):
    def inputs(run: Run, name: str) -> list[str]:
        (block,) = [one for one in diagrams.kinds(run).values() if one.name == name]
        nodes, arrows = diagrams.inside(run, block)
        joined = next(n for n, node in enumerate(nodes) if node.label == "join")
        return [nodes[joined].shape, *(nodes[a.source].shape for a in arrows if a.target == joined)]

    assert inputs(flux, "single_blocks.0") == ["2×11×256", "2×1×256", "2×10×256"]
    unet = trace(CASES["sd15/unet/between"])
    assert inputs(unet, "output_blocks.0") == ["2×256×1×3", "2×128×1×3", "2×128×1×3"]


def wiring(run: Run) -> set[tuple[str, str, str]]:
    """Return (step, parameter, the step whose result it takes), by name."""
    return {(step.name, one, run.steps[j].name) for step in run.steps for one, j in step.takes}


def test_arrows_are_the_wiring_of_the_code(flux):
    arrows = {(a.removeprefix("double_blocks.0."), one, b) for a, one, b in wiring(flux)}
    assert ("img_attn.qkv", "x", "double_blocks.0.modulate") in arrows
    assert ("gated_add", "x", "img_in") in arrows and ("gated_add", "h", "double_blocks.0.img_attn.proj") in arrows
    assert ("gated_add", "gate", "double_blocks.0.img_mod.lin") in arrows
    assert {b for a, one, b in arrows if (a, one) == ("attention", "v")} == {
        "double_blocks.0.img_attn.qkv",
        "double_blocks.0.txt_attn.qkv",
    }
    assert set(flux.arguments["double_blocks.0"].values()) == {"img", "txt", "vec"}


@pytest.mark.parametrize("wrong", ["gate", "residual", "streams"])
def test_another_wiring_has_other_arrows(flux, wrong, monkeypatch):
    right = flux_model.double_stream

    def double_stream(m, img, txt, img_mod, txt_mod, angle, num_heads, mask=None):
        if wrong == "gate":
            txt_mod = img_mod
        if wrong == "residual":
            img = m.add(img, img)
        y, z = right(m, img, txt, img_mod, txt_mod, angle, num_heads, mask)
        return (y + 0 * y, y[:, : z.shape[1]]) if wrong == "streams" else (y, z)

    monkeypatch.setattr(flux_model, "double_stream", double_stream)
    changed = trace(CASES["flux-dev/flux/between"])
    assert wiring(changed) != wiring(flux)


def test_a_kernel_page_has_equation_then_naive_then_kernel(site):
    for kernel, naive in (("conv2d_im2col", "sliding_window_view"), ("group_norm", "longdouble")):
        text = (site / f"code/kernels/{kernel}.py.html").read_text(encoding="utf-8")
        text = re.sub(r"<[^>]+>", "", text.partition("<article")[2])
        at = [
            text.index(words) for words in ("Equation", "sum" if "conv" in kernel else "sqrt(Var", naive, "@kernel")
        ]
        assert at == sorted(at)
    assert text.count("sqrt(Var[x] + eps)") == 1, "an equation stands once"


def test_each_indented_equation_of_a_docstring_is_on_its_page():
    root = Path(__file__).parents[2]
    files = [path for folder in code_pages.FOLDERS for path in sorted((root / folder).glob("*.py"))]
    plain = lambda text: re.sub(r"\s+", " ", text)
    seen = 0
    for path in files:
        name = path.relative_to(root).as_posix()
        page = plain(code_pages._page(root, name, root / "site" / code_pages.page_of(name)))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for block in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    if block.startswith("    ") and "=" in block:
                        assert plain(block).strip() in page, f"{name}: {node.name}"
                        seen += 1
    assert seen > 100


def test_a_naive_version_is_that_of_the_longest_name():
    root = Path(__file__).parents[2]
    naive = lambda name: code_pages.naive_of(root, f"kernels/{name}.py")
    assert naive("conv2d_im2col") == "tests/naive/conv2d.py"
    assert naive("attention_softcap") == "tests/naive/attention_softcap.py"
    assert naive("scratch") == ""


def test_nodes_do_not_overlap_and_lines_lead_down():
    nodes = [drawing.Node(str(i), "", "other", "") for i in range(9)]
    arrows = [drawing.Arrow(i, j) for j in range(2, 9) for i in (j - 2, j - 1)]
    at = drawing.places(nodes, arrows, lanes=2)
    assert len(set(at)) == len(at)
    assert all(at[arrow.source][0] < at[arrow.target][0] for arrow in arrows)


def test_a_click_on_an_operation_leads_to_its_line(site):
    page = site / "learn" / "diagrams" / "flux.html"
    links = re.findall(r'<a href="([^"]+)#L(\d+)"><rect class="attention"', page.read_text(encoding="utf-8"))
    assert links
    for link, line in links:
        code = (page.parent / link).read_text(encoding="utf-8")
        (shown,) = re.findall(
            rf'<span class="line" id="L{line}"[^>]*>(.*?)</span>\n?(?=<span class="line"|</pre>)', code
        )
        assert "attention" in shown


def test_a_wrong_link_an_anchor_and_an_orphan_are_found(tmp_path):
    (tmp_path / "index.html").write_text('<a href="a.html#there">a</a><a href="b.html">b</a><img src="c.png">')
    (tmp_path / "a.html").write_text('<p id="here">')
    (tmp_path / "lost.html").write_text("<p>")
    assert sorted(wrong_links(tmp_path)) == [
        "index.html: a.html#there: no such anchor",
        "index.html: b.html: no such file",
        "index.html: c.png: no such file",
        "lost.html: no link leads to it",
    ]


def test_the_numbers_that_open_how_refsd_is_tested():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "testing.md").read_text(encoding="utf-8")
    bugs = sum(len(operation.mutants) for operation in OPERATIONS.values())
    (said,) = re.findall(r"\*\*(\d+)\*\* \| known bugs", page)
    assert int(said) <= bugs < int(said) + 100
    text = (docs / "generalisation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w-]+ \| 2026-[-\d]+ \| \d+ \| (\d+) \| (\d+)[^|]*\| \d+ \| (\d+)", text, re.M)
    total, seen, named = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert len(rows) == 21 and f"**{seen} of {total}**" in page and f"{named} are named first" in page
