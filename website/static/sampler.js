// Samplers on the best possible denoiser of four Gaussians in the plane. The texts are those of samplers/*.py.
"use strict";
const Sampler = (() => {
  const MEANS = [[2, 0], [0, 2], [-2, 0], [0, -2]], SPREAD = 0.35;

  // E[data | x], x = data + sigma noise
  function denoiser([x, y], sigma) {
    const whole = SPREAD ** 2 + sigma ** 2, keep = SPREAD ** 2 / whole;
    const logs = MEANS.map(([a, b]) => -((x - a) ** 2 + (y - b) ** 2) / (2 * whole));
    const top = Math.max(...logs), weights = logs.map(l => Math.exp(l - top));
    const sum = weights.reduce((a, b) => a + b);
    let u = 0, v = 0;
    MEANS.forEach(([a, b], i) => {
      u += weights[i] / sum * (a + keep * (x - a));
      v += weights[i] / sum * (b + keep * (y - b));
    });
    return [u, v];
  }

  function karras(n, low = 0.03, high = 10, rho = 7) {
    const sigmas = [];
    for (let i = 0; i < n; i++) {
      const share = n > 1 ? i / (n - 1) : 0;
      sigmas.push((high ** (1 / rho) + share * (low ** (1 / rho) - high ** (1 / rho))) ** rho);
    }
    return [...sigmas, 0];
  }

  const plus = (x, s, y) => [x[0] + s * y[0], x[1] + s * y[1]];
  const slope = (x, sigma) => { const d = denoiser(x, sigma); return [(x[0] - d[0]) / sigma, (x[1] - d[1]) / sigma]; };

  // A generator of normal numbers from a seed, so that a picture is the same each time.
  function normals(seed) {
    let s = seed >>> 0;
    const uniform = () => {
      s = (s + 0x6d2b79f5) >>> 0;
      let t = Math.imul(s ^ s >>> 15, 1 | s);
      t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
      return ((t ^ t >>> 14) >>> 0) / 4294967296;
    };
    return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  const SOLVERS = {
    euler(x, sigmas) {
      const path = [x];
      for (let i = 0; i + 1 < sigmas.length; i++)
        path.push(x = plus(x, sigmas[i + 1] - sigmas[i], slope(x, sigmas[i])));
      return path;
    },
    heun(x, sigmas) {
      const path = [x];
      for (let i = 0; i + 1 < sigmas.length; i++) {
        const dt = sigmas[i + 1] - sigmas[i], d = slope(x, sigmas[i]);
        const x2 = plus(x, dt, d);
        if (sigmas[i + 1] === 0) x = x2;
        else { const d2 = slope(x2, sigmas[i + 1]); x = plus(plus(x, dt / 2, d), dt / 2, d2); }
        path.push(x);
      }
      return path;
    },
    dpmpp_2m(x, sigmas) {
      const path = [x];
      let old = null, hLast = 0;
      for (let i = 0; i + 1 < sigmas.length; i++) {
        const denoised = denoiser(x, sigmas[i]);
        if (sigmas[i + 1] === 0) { path.push(x = denoised); break; }
        const h = Math.log(sigmas[i] / sigmas[i + 1]);
        let d = denoised;
        if (old) { const r = hLast / h; d = plus([denoised[0] * (1 + 1 / (2 * r)), denoised[1] * (1 + 1 / (2 * r))], -1 / (2 * r), old); }
        const scale = sigmas[i + 1] / sigmas[i];
        x = plus([scale * x[0], scale * x[1]], -Math.expm1(-h), d);
        path.push(x);
        old = denoised; hLast = h;
      }
      return path;
    },
    euler_ancestral(x, sigmas, normal) {
      const path = [x];
      for (let i = 0; i + 1 < sigmas.length; i++) {
        const s = sigmas[i], to = sigmas[i + 1];
        const up = Math.min(to, Math.sqrt(Math.max(0, to ** 2 * (s ** 2 - to ** 2) / s ** 2)));
        const down = Math.sqrt(to ** 2 - up ** 2);
        x = plus(x, down - s, slope(x, s));
        if (to > 0) x = plus(x, up, [normal(), normal()]);
        path.push(x);
      }
      return path;
    },
  };
  return { MEANS, SPREAD, denoiser, karras, normals, SOLVERS };
})();
if (typeof module !== "undefined") module.exports = Sampler;

if (typeof document !== "undefined") (() => {
  const root = document.getElementById("sampler"), told = root.querySelector("output");
  const [plane, errors] = root.querySelectorAll("canvas");
  const [first, second, steps, seeds] = ["first", "second", "steps", "seeds"].map(name => root.querySelector(`[name=${name}]`));
  const COLOURS = ["--pst-color-primary", "--pst-color-accent"], fine = Sampler.karras(400), goals = new Map();
  const calls = (name, n) => name === "heun" ? 2 * n - 1 : n;
  const start = seed => { const normal = Sampler.normals(seed); return [[normal() * fine[0], normal() * fine[0]], normal]; };
  const exact = seed => {
    if (!goals.has(seed)) goals.set(seed, Sampler.SOLVERS.heun(start(seed)[0], fine));
    return goals.get(seed);
  };
  const path = (name, n, seed) => { const [x, normal] = start(seed); return Sampler.SOLVERS[name](x, Sampler.karras(n), normal); };

  // The RMS distance of the ends from those of the exact paths.
  function distance(name, n, count) {
    let square = 0;
    for (let seed = 1; seed <= count; seed++) {
      const end = path(name, n, seed).pop(), goal = exact(seed).at(-1);
      square += (end[0] - goal[0]) ** 2 + (end[1] - goal[1]) ** 2;
    }
    return Math.sqrt(square / count);
  }

  function draw() {
    const n = +steps.value, count = +seeds.value, chosen = [first, second];
    const wide = plane.getBoundingClientRect(), half = 3.2 * wide.width / wide.height;
    const at = Axes.on(plane, { low: -half, high: half, label: "first coordinate" }, { low: -3.2, high: 3.2, label: "second coordinate" });
    const c = at.c;
    at.clip();
    c.strokeStyle = Axes.colour("--pst-color-text-muted");
    for (const mean of Sampler.MEANS) for (const r of [1, 2]) {
      c.globalAlpha = 0.5 / r; c.beginPath();
      c.ellipse(at.x(mean[0]), at.y(mean[1]), at.x(r * Sampler.SPREAD) - at.x(0), at.y(0) - at.y(r * Sampler.SPREAD), 0, 0, 7); c.stroke();
    }
    const line = (points, colour, width, dots) => {
      c.strokeStyle = c.fillStyle = Axes.colour(colour); c.lineWidth = width; c.beginPath();
      points.forEach(([x, y], i) => i ? c.lineTo(at.x(x), at.y(y)) : c.moveTo(at.x(x), at.y(y))); c.stroke();
      if (dots) for (const [x, y] of points) { c.beginPath(); c.arc(at.x(x), at.y(y), dots, 0, 7); c.fill(); }
    };
    c.globalAlpha = 1;
    for (let seed = 1; seed <= count; seed++) {
      line(exact(seed), "--pst-color-text-muted", 3);
      chosen.forEach((one, i) => line(path(one.value, n, seed), COLOURS[i], 1.3, 2.5));
    }
    const counts = [4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 40];
    const curves = chosen.map(one => counts.map(k => [Math.log10(calls(one.value, k)), Math.log10(distance(one.value, k, 20))]));
    const on = Axes.on(errors, { low: 0.5, high: 2, label: "calls of the model", log: true, ticks: [1, 2] },
      { low: -4, high: 0.5, label: "distance of the ends", log: true });
    curves.forEach((curve, i) => {
      on.c.strokeStyle = on.c.fillStyle = Axes.colour(COLOURS[i]); on.c.lineWidth = 1.5; on.c.beginPath();
      curve.forEach(([x, y], k) => k ? on.c.lineTo(on.x(x), on.y(y)) : on.c.moveTo(on.x(x), on.y(y))); on.c.stroke();
      for (const [x, y] of curve) { on.c.beginPath(); on.c.arc(on.x(x), on.y(y), 2.5, 0, 7); on.c.fill(); }
    });
    const named = chosen.map(one => one.selectedOptions[0].textContent);
    Axes.legend(root, [...named.map((name, i) => [name, COLOURS[i], "dots"]), ["exact path", "--pst-color-text-muted", "thick"]]);
    told.textContent = chosen.map((one, i) => `${named[i]}: ${n} steps, ${calls(one.value, n)} calls of the model, the ends lie `
      + `${distance(one.value, n, count).toPrecision(3)} (RMS) from those of the exact paths.`).join("\n");
    root.querySelector("[data-of=steps]").textContent = n;
    root.querySelector("[data-of=seeds]").textContent = count;
  }
  for (const input of [first, second, steps, seeds]) input.addEventListener("input", draw);
  Axes.redraw(draw);
})();
