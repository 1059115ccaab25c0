// The bytes of one GGUF block, and the weights that they hold. Layouts as in kernels/quant/*.py.
"use strict";
const Block = (() => {
  function half(bytes, at) {
    const bits = bytes[at] | bytes[at + 1] << 8, sign = bits >> 15 ? -1 : 1, e = bits >> 10 & 31, m = bits & 1023;
    if (e === 31) return m ? NaN : sign * Infinity;
    return sign * (e ? 2 ** (e - 15) * (1 + m / 1024) : 2 ** -14 * m / 1024);
  }
  const f = Math.fround;

  // Each type: its size, what a byte holds, and weight i with its formula and the bytes that it is made from.
  const TYPES = {
    q8_0: {
      bytes: 34, weights: 32, holds: i => i < 2 ? "d" : "q",
      weight(b, i) {
        const d = half(b, 0), q = b[2 + i] << 24 >> 24;
        return { y: f(d * q), text: `d q = ${d} * ${q}`, from: [0, 1, 2 + i] };
      },
    },
    q4_0: {
      bytes: 18, weights: 32, holds: i => i < 2 ? "d" : "q",
      weight(b, i) {
        const d = half(b, 0), at = 2 + i % 16, q = i < 16 ? b[at] & 15 : b[at] >> 4;
        return { y: f(d * (q - 8)), text: `d (q - 8) = ${d} * (${q} - 8)`, note: `; q is the ${i < 16 ? "low" : "high"} nibble`, from: [0, 1, at] };
      },
    },
    q4_k: {
      bytes: 144, weights: 256, holds: i => i < 2 ? "d" : i < 4 ? "dmin" : i < 16 ? "scale" : "q",
      weight(b, i) {
        const d = half(b, 0), dmin = half(b, 2), g = i >> 5, pair = g >> 1, at = 16 + 32 * pair + i % 32;
        const q = g & 1 ? b[at] >> 4 : b[at] & 15;
        let scale, minimum, from;
        if (g < 4) [scale, minimum, from] = [b[4 + g] & 63, b[8 + g] & 63, [4 + g, 8 + g]];
        else {
          scale = b[8 + g] & 15 | b[g] >> 6 << 4;
          minimum = b[8 + g] >> 4 | b[4 + g] >> 6 << 4;
          from = [8 + g, g, 4 + g];
        }
        const y = f(f(f(d * scale) * q) - f(dmin * minimum));
        return { y, text: `d scale q - dmin min = ${d} * ${scale} * ${q} - ${dmin} * ${minimum}`, note: `; group ${g}`, from: [0, 1, 2, 3, ...from, at] };
      },
    },
  };
  const dequantize = (type, bytes) => Array.from({ length: TYPES[type].weights }, (_, i) => TYPES[type].weight(bytes, i).y);
  return { half, TYPES, dequantize };
})();
if (typeof module !== "undefined") module.exports = Block;

if (typeof document !== "undefined") (() => {
  const root = document.getElementById("block"), told = root.querySelector("output"), choice = root.querySelector("select");
  const grid = root.querySelector(".bytes"), bars = root.querySelector(".weights");
  let bytes, type;

  // A sine quantized so that its shape is easily seen: d, scales and codes are set, not searched.
  function example(name) {
    const b = new Uint8Array(Block.TYPES[name].bytes);
    const sine = i => Math.sin(i * 2 * Math.PI / 32);
    if (name === "q8_0") { b.set([0, 0x20]); for (let i = 0; i < 32; i++) b[2 + i] = Math.round(sine(i) * 127); }
    if (name === "q4_0") { b.set([0, 0x30]); for (let i = 0; i < 16; i++) b[2 + i] = Math.round(8 + 7 * sine(i)) | Math.round(8 + 7 * sine(i + 16)) << 4; }
    if (name === "q4_k") {
      b.set([0, 0x20, 0, 0x20, 20, 30, 40, 50, 20, 30, 40, 50]);
      for (let g = 4; g < 8; g++) b[8 + g] = 9 + g | 9 + g << 4;
      for (let i = 16; i < 144; i++) b[i] = Math.round(7.5 + 7 * sine(i - 16)) | Math.round(7.5 + 7 * sine(i)) << 4;
    }
    return b;
  }
  function mark(wanted, chosen) {
    [...grid.children].forEach((cell, i) => cell.classList.toggle("lit", wanted.includes(i)));
    [...bars.children].forEach((bar, i) => bar.classList.toggle("lit", chosen.includes(i)));
  }
  function showWeight(i) {
    const w = type.weight(bytes, i);
    mark(w.from, [i]);
    told.textContent = `weight ${i} = ${w.text} = ${w.y}${w.note || ""}`;
  }
  function showByte(i) {
    const made = Array.from({ length: type.weights }, (_, w) => w).filter(w => type.weight(bytes, w).from.includes(i));
    mark([i], made);
    const bits = bytes[i].toString(2).padStart(8, "0");
    told.textContent = `byte ${i} (${type.holds(i)}) = ${bytes[i]} = ${bits}; it reaches ${made.length} weight${made.length === 1 ? "" : "s"}. Up and down change it.`;
  }
  function redraw() {
    const all = Block.dequantize(choice.value, bytes), top = Math.max(...all.map(Math.abs).filter(Number.isFinite), 1e-12);
    [...bars.children].forEach((bar, i) => {
      bar.style.setProperty("--y", Number.isFinite(all[i]) ? all[i] / top : 0);
      bar.setAttribute("aria-label", `weight ${i}: ${all[i]}`);
    });
    [...grid.children].forEach((cell, i) => { cell.textContent = bytes[i].toString(16).padStart(2, "0"); });
  }
  function button(label, kind, act) {
    const b = document.createElement("button");
    b.type = "button"; b.className = kind; b.textContent = label;
    b.addEventListener("focus", act); b.addEventListener("click", act); b.addEventListener("pointerenter", act);
    return b;
  }
  function start() {
    type = Block.TYPES[choice.value]; bytes = example(choice.value);
    grid.replaceChildren(...Array.from(bytes, (_, i) => button("", `byte ${type.holds(i)}`, () => showByte(i))));
    bars.replaceChildren(...Array.from({ length: type.weights }, (_, i) => button("", "weight", () => showWeight(i))));
    [...bars.children, ...grid.children].forEach(one => { if (one !== grid.firstChild && one !== bars.firstChild) one.tabIndex = -1; });
    redraw(); showWeight(0);
  }
  // One stop of the Tab key for each row; arrows move in it, up and down change a byte.
  root.addEventListener("keydown", event => {
    const all = [...event.target.parentElement.children], i = all.indexOf(event.target), inBytes = event.target.parentElement === grid;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && all[i + step]) { all[i + step].focus(); event.preventDefault(); }
    const change = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (change && inBytes) { bytes[i] += change; redraw(); showByte(i); event.preventDefault(); }
  });
  choice.addEventListener("input", start);
  start();
})();
