"use strict";
const answers = [...document.querySelectorAll("details.answer")];
const bodies = [...document.querySelectorAll("table.matrix tbody")];
const filter = document.getElementById("filter");
const only = document.getElementById("only");

function fold(body, open) {
  body.querySelector("button").setAttribute("aria-expanded", String(open));
  show();
}

function show() {
  const text = filter.value.trim().toLowerCase();
  for (const body of bodies) {
    const [head, ...rows] = body.rows;
    const open = head.querySelector("button").getAttribute("aria-expanded") === "true" || text !== "";
    let any = false;
    for (const row of rows) {
      const bad = row.querySelector(".fail, .error, .deviates") !== null;
      const fits = row.cells[0].textContent.toLowerCase().includes(text) && (bad || !only.checked);
      any ||= fits;
      row.hidden = !(fits && open);
    }
    const whole = rows.length === 0 && !only.checked && head.cells[0].textContent.toLowerCase().includes(text);
    head.hidden = !(any || whole);
  }
}

function open(answer, focus) {
  answer.open = true;
  answer.scrollIntoView({ block: "start" });
  if (focus) answer.querySelector("summary").focus({ preventScroll: true });
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (answers.includes(target)) open(target, true);
}

for (const body of bodies) {
  const button = body.querySelector("button");
  button.setAttribute("aria-expanded", String(body.className === "bad"));
  button.addEventListener("click", () => fold(body, button.getAttribute("aria-expanded") !== "true"));
}
filter.addEventListener("input", show);
only.addEventListener("change", show);
addEventListener("hashchange", openTarget);
addEventListener("beforeprint", () => answers.forEach((answer) => (answer.open = true)));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === filter) {
    if (event.key === "Escape") filter.blur();
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    filter.focus();
    return;
  }
  const step = { n: 1, p: -1 }[event.key];
  if (step === undefined || answers.length === 0) return;
  const at = answers.findIndex((answer) => answer.contains(document.activeElement));
  open(answers[at < 0 ? (step > 0 ? 0 : answers.length - 1) : (at + step + answers.length) % answers.length], true);
});
show();
openTarget();
