// A canvas with axes: ticks, labels and a legend, in the colours of the page. Shared by the living figures.
"use strict";
const Axes = {
  colour: name => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),

  // across, up: { low, high, label, log } with decades for log. -> { c, x, y, unit, clip, legend }
  on(canvas, across, up) {
    const box = canvas.getBoundingClientRect(), unit = devicePixelRatio || 1, c = canvas.getContext("2d");
    canvas.width = box.width * unit; canvas.height = box.height * unit;
    c.scale(unit, unit);
    const left = 58, right = box.width - 18, top = 8, bottom = box.height - 40;
    const share = (axis, value) => (value - axis.low) / (axis.high - axis.low);
    const x = value => left + share(across, value) * (right - left), y = value => bottom - share(up, value) * (bottom - top);
    const ticks = (axis, room) => { // room: for how many
      const least = (axis.high - axis.low) / Math.max(2, room);
      const step = [1, 2, 5, 10, 20, 50, 100, 200].find(s => s >= least) || least;
      const made = [];
      for (let t = Math.ceil(axis.low / step) * step; t <= axis.high + 1e-9; t += step) made.push(t);
      return made;
    };
    const name = (axis, t) => axis.log ? "1e" + t : String(t);
    c.font = "12px system-ui, sans-serif"; c.fillStyle = Axes.colour("--pst-color-text-muted");
    c.strokeStyle = Axes.colour("--pst-color-border"); c.lineWidth = 1;
    c.textAlign = "center";
    for (const t of across.ticks || ticks(across, (right - left) / 60)) {
      c.beginPath(); c.moveTo(x(t), top); c.lineTo(x(t), bottom); c.stroke(); c.fillText(name(across, t), x(t), bottom + 15);
    }
    c.fillText(across.label, (left + right) / 2, box.height - 6);
    c.textAlign = "right";
    for (const t of ticks(up, (bottom - top) / 26)) {
      c.beginPath(); c.moveTo(left, y(t)); c.lineTo(right, y(t)); c.stroke(); c.fillText(name(up, t), left - 6, y(t) + 4);
    }
    c.save(); c.translate(12, (top + bottom) / 2); c.rotate(-Math.PI / 2); c.textAlign = "center"; c.fillText(up.label, 0, 0); c.restore();
    const clip = () => { c.beginPath(); c.rect(left, top, right - left, bottom - top); c.clip(); };
    return { c, x, y, left, right, top, bottom, clip };
  },

  // rows: [name, variable of the colour, mark]
  legend(root, rows) {
    const list = root.querySelector(".legend");
    list.replaceChildren(...rows.map(([name, colour, mark]) => {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = mark; swatch.style.setProperty("--of", `var(${colour})`);
      item.append(swatch, name);
      return item;
    }));
  },

  redraw(draw) {
    addEventListener("resize", draw);
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    draw();
  },
};
