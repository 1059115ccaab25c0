// Two engines and one tolerance: what it calls wrong, against a bound for each element. Numbers from a run, in TOLERANCE.
"use strict";
const Tolerance = {
  // errors: of an engine; bounds or one tolerance -> how many lie beyond
  beyond: (errors, limit) => errors.reduce((n, e, i) => n + (Math.abs(e) > (Array.isArray(limit) ? limit[i] : limit)), 0),
};
if (typeof module !== "undefined") module.exports = Tolerance;

if (typeof document !== "undefined") (() => {
  const root = document.getElementById("tolerance"), data = JSON.parse(root.querySelector("script").textContent);
  const slider = root.querySelector("input"), told = root.querySelector("output"), canvas = root.querySelector("canvas");
  const log = x => Math.log10(Math.max(x, 1e-300));
  const errors = [data.bound, data.honest, data.wrong].flat().filter(x => x > 0).map(log);
  const low = Math.floor(Math.min(...errors)), high = Math.ceil(Math.max(...errors));
  const values = data.value.map(log), ends = { low: Math.floor(Math.min(...values)), high: Math.ceil(Math.max(...values)) };

  function draw() {
    const tolerance = 10 ** (low + slider.value / 100 * (high - low));
    const at = Axes.on(canvas, { ...ends, label: "size of the right result", log: true }, { low, high, label: "error", log: true });
    const c = at.c, y = e => at.y(Math.max(log(e), low));
    c.fillStyle = Axes.colour("--pst-color-text-muted"); c.globalAlpha = 0.5;
    data.bound.forEach((b, i) => c.fillRect(at.x(values[i]) - 3, y(b) - 1, 6, 2));
    c.globalAlpha = 1;
    const dots = (errors, name) => { c.fillStyle = Axes.colour(name); errors.forEach((e, i) => { c.beginPath(); c.arc(at.x(values[i]), y(e), 2, 0, 7); c.fill(); }); };
    dots(data.wrong, "--pst-color-danger"); dots(data.honest, "--pst-color-primary");
    c.strokeStyle = Axes.colour("--pst-color-text-base"); c.lineWidth = 1.5; c.setLineDash([6, 4]);
    c.beginPath(); c.moveTo(at.left, y(tolerance)); c.lineTo(at.right, y(tolerance)); c.stroke(); c.setLineDash([]);
    const verdict = n => n ? `fails (${n} elements)` : "passes";
    told.textContent = `tolerance ${tolerance.toExponential(1)}: the honest engine ${verdict(Tolerance.beyond(data.honest, tolerance))}, `
      + `the wrong one ${verdict(Tolerance.beyond(data.wrong, tolerance))}. By the bound of each element: the honest engine `
      + `${verdict(Tolerance.beyond(data.honest, data.bound))}, the wrong one ${verdict(Tolerance.beyond(data.wrong, data.bound))}.`;
  }
  Axes.legend(root, [["honest engine", "--pst-color-primary", "dots"], ["wrong engine", "--pst-color-danger", "dots"],
    ["bound of each element", "--pst-color-text-muted", "thick"], ["your tolerance", "--pst-color-text-base", "dashed"]]);
  slider.addEventListener("input", draw);
  Axes.redraw(draw);
})();
