"""Write a report as JUnit XML."""

from xml.etree import ElementTree

from refsd.golden import verdict
from refsd.golden.report import Report
from refsd.numerics.printable import printable
from refsd.reports.cells import margin_text, of_lacking_operations
from refsd.reports.groups import CAUSE, groups

_BAD = (verdict.FAIL, verdict.DEVIATES, verdict.ERROR)


def junit(report: Report) -> bytes:
    """Make a suite for each engine and a test for each case; refused, waived and known failing cases are skipped.

    Cases of operations that the engine lacks are left out.
    A failure's message begins with the words under which the terminal reports it.
    """
    causes = {(r.engine, r.case): f"{g.title}: " for g in groups(report) if g.kind == CAUSE for r in g.results}
    known = {*report.baseline.known} if report.baseline is not None else set()
    root = ElementTree.Element("testsuites", name="refsd conform")
    for name, version in report.engines.items():
        lacking = {r.case for r in of_lacking_operations(report, name)}
        results = [r for r in report.of(name) if r.case not in lacking]
        suite = ElementTree.SubElement(
            root, "testsuite", name=printable(f"{name} {version}"), tests=str(len(results))
        )
        for r in results:
            of = {"classname": printable(f"{name}.{r.op}"), "name": printable(r.case), "time": f"{r.seconds:.6f}"}
            test = ElementTree.SubElement(suite, "testcase", of)
            text = causes.get((r.engine, r.case), "") + r.reason
            if r.status in _BAD and (r.engine, r.case) in known:
                ElementTree.SubElement(test, "skipped", message=printable(f"known from the baseline: {text}"))
            elif r.status in _BAD:
                kind = "error" if r.status == verdict.ERROR else "failure"
                failure = ElementTree.SubElement(test, kind, type=r.status, message=printable(text))
                failure.text = "\n".join(map(printable, r.log)) or None
            elif r.status in (verdict.REFUSED, verdict.WAIVED):
                ElementTree.SubElement(test, "skipped", message=printable(r.reason))
            else:
                ElementTree.SubElement(test, "system-out").text = f"margin {margin_text(r.margin)} {r.criterion}"
        for key, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(key, str(len(suite.findall(f"testcase/{kind}"))))
    whole = [f"interrupted: {report.partial}"] if report.partial else []
    for line in [*whole, *(f"too few: {line}" for line in report.shortage)]:
        suite = ElementTree.SubElement(root, "testsuite", name="corpus", tests="1", failures="1")
        test = ElementTree.SubElement(suite, "testcase", classname="corpus", name=printable(line))
        ElementTree.SubElement(test, "failure", type="fail", message=printable(line))
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
