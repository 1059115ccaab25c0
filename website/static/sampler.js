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
  const root = document.getElementById("sampler"), canvas = root.querySelector("canvas"), told = root.querySelector("output");
  const [solver, steps, seeds] = ["solver", "steps", "seeds"].map(name => root.querySelector(`[name=${name}]`));
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw() {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    canvas.width = box.width * ratio; canvas.height = box.height * ratio;
    const c = canvas.getContext("2d"), unit = canvas.height / 8;
    const at = ([x, y]) => [canvas.width / 2 + x * unit, canvas.height / 2 - y * unit];
    c.strokeStyle = c.fillStyle = colour("--pst-color-text-muted");
    for (const mean of Sampler.MEANS) for (const r of [1, 2]) {
      c.beginPath(); c.arc(...at(mean), r * Sampler.SPREAD * unit, 0, 7); c.globalAlpha = 0.5 / r; c.stroke();
    }
    const n = +steps.value, sigmas = Sampler.karras(n), fine = Sampler.karras(400);
    let square = 0;
    for (let seed = 1; seed <= +seeds.value; seed++) {
      const normal = Sampler.normals(seed), start = [normal() * sigmas[0], normal() * sigmas[0]];
      const path = Sampler.SOLVERS[solver.value](start, sigmas, normal), end = path[path.length - 1];
      const exact = Sampler.SOLVERS.heun(start, fine), goal = exact[exact.length - 1];
      square += (end[0] - goal[0]) ** 2 + (end[1] - goal[1]) ** 2;
      c.globalAlpha = 0.35; c.strokeStyle = colour("--pst-color-primary"); c.lineWidth = ratio;
      c.beginPath(); path.forEach((p, i) => i ? c.lineTo(...at(p)) : c.moveTo(...at(p))); c.stroke();
      c.globalAlpha = 1; c.fillStyle = colour("--pst-color-accent");
      c.beginPath(); c.arc(...at(end), 2.5 * ratio, 0, 7); c.fill();
    }
    const calls = n * (solver.value === "heun" ? 2 : 1) - (solver.value === "heun" ? 1 : 0);
    told.textContent = `${n} steps, ${calls} calls of the model; the ends lie ${Math.sqrt(square / seeds.value).toPrecision(3)} (RMS) from those of the exact path`;
    root.querySelector("[data-of=steps]").textContent = n;
    root.querySelector("[data-of=seeds]").textContent = seeds.value;
  }
  for (const input of [solver, steps, seeds]) input.addEventListener("input", draw);
  addEventListener("resize", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  draw();
})();
