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
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const limits = [data.bound, data.honest, data.wrong].flat().map(Math.abs).filter(x => x > 0);
  const low = Math.log10(Math.min(...limits)), high = Math.log10(Math.max(...limits)) + 0.5;

  function draw() {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    canvas.width = box.width * ratio; canvas.height = box.height * ratio;
    const c = canvas.getContext("2d"), tolerance = 10 ** (low + slider.value / 100 * (high - low));
    const x = i => (i + 0.5) / data.bound.length * canvas.width;
    const y = e => canvas.height * (1 - (Math.log10(Math.max(Math.abs(e), 10 ** low)) - low) / (high - low));
    c.fillStyle = colour("--pst-color-text-muted"); c.globalAlpha = 0.35;
    data.bound.forEach((b, i) => c.fillRect(x(i) - 2 * ratio, y(b) - ratio, 4 * ratio, 2 * ratio));
    c.globalAlpha = 1;
    const dot = (errors, name) => { c.fillStyle = colour(name); errors.forEach((e, i) => { c.beginPath(); c.arc(x(i), y(e), 2.2 * ratio, 0, 7); c.fill(); }); };
    dot(data.honest, "--pst-color-primary"); dot(data.wrong, "--pst-color-danger");
    c.strokeStyle = colour("--pst-color-text-base"); c.lineWidth = ratio; c.setLineDash([6 * ratio, 4 * ratio]);
    c.beginPath(); c.moveTo(0, y(tolerance)); c.lineTo(canvas.width, y(tolerance)); c.stroke(); c.setLineDash([]);
    const verdict = n => n ? `fails (${n} elements)` : "passes";
    told.textContent = `tolerance ${tolerance.toExponential(1)}: the honest engine ${verdict(Tolerance.beyond(data.honest, tolerance))}, `
      + `the wrong one ${verdict(Tolerance.beyond(data.wrong, tolerance))}. By the bound of each element: the honest engine `
      + `${verdict(Tolerance.beyond(data.honest, data.bound))}, the wrong one ${verdict(Tolerance.beyond(data.wrong, data.bound))}.`;
  }
  slider.addEventListener("input", draw);
  addEventListener("resize", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  draw();
})();
