// One block in four formats: the error of each operation, and one element's digits.
"use strict";
const Rounding = {
  // How many leading characters of a number agree with the right one; the digits are those of the same exponent.
  agreeing: (found, right) => { let n = 0; while (n < found.length && found[n] === right[n]) n++; return n; },
};
if (typeof module !== "undefined") module.exports = Rounding;

if (typeof document !== "undefined") (() => {
  const root = document.getElementById("rounding"), data = JSON.parse(root.querySelector("script").textContent);
  const slider = root.querySelector("input"), canvas = root.querySelector("canvas"), table = root.querySelector("table");
  const COLOURS = { float32: "--pst-color-success", float16: "--pst-color-primary", bfloat16: "--pst-color-danger" };

  function draw() {
    const at = Axes.on(canvas, { low: 0, high: data.steps.length + 1, label: "operation, in order" },
      { low: -8, high: -1, label: "relative error", log: true });
    for (const [name, errors] of Object.entries(data.errors)) {
      at.c.strokeStyle = at.c.fillStyle = Axes.colour(COLOURS[name]); at.c.lineWidth = 1.5; at.c.beginPath();
      errors.forEach((e, i) => i ? at.c.lineTo(at.x(i + 1), at.y(Math.log10(e))) : at.c.moveTo(at.x(1), at.y(Math.log10(e)))); at.c.stroke();
      errors.forEach((e, i) => { at.c.beginPath(); at.c.arc(at.x(i + 1), at.y(Math.log10(e)), 2.5, 0, 7); at.c.fill(); });
    }
    const element = +slider.value, formats = Object.keys(data.shown), text = x => x.toPrecision(9);
    root.querySelector("form b").textContent = element;
    const cell = (kind, inside) => { const made = document.createElement(kind); made.append(...inside); return made; };
    const row = (kind, cells) => cell("tr", cells.map(inside => cell(kind, inside)));
    table.replaceChildren(row("th", [["operation"], ...formats.map(name => [name])]), ...data.steps.map((step, i) => {
      const right = text(data.shown.float64[i][element]);
      return row("td", [[`${i + 1} ${step}`], ...formats.map(name => {
        const found = text(data.shown[name][i][element]), n = Rounding.agreeing(found, right);
        return name === "float64" ? [found] : [cell("b", [found.slice(0, n)]), found.slice(n)];
      })]);
    }));
  }
  Axes.legend(root, Object.entries(COLOURS).map(([name, colour]) => [name, colour, "dots"]));
  slider.addEventListener("input", draw);
  Axes.redraw(draw);
})();
