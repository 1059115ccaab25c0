"use strict";
const of = (id) => document.getElementById(id);
const [filter, only, op, old] = ["filter", "only", "op", "old"].map(of);

function text(field) {
  return field.value.trim().toLowerCase();
}

function showRuns() {
  let any = false;
  for (const row of of("runs").tBodies[0].rows) {
    const bad = Number(row.dataset.bad) > 0;
    const fits =
      text(filter).split(/\s+/).every((word) => row.cells[0].textContent.toLowerCase().includes(word)) &&
      (only.value === "" || bad === (only.value === "bad")) &&
      (!row.dataset.old || (old !== null && old.checked));
    row.hidden = !fits;
    any ||= fits;
  }
  of("empty").hidden = any;
}

function showOperations() {
  for (const body of of("ops").tBodies) {
    const [head, ...rows] = body.rows;
    const whole = head.textContent.toLowerCase().includes(text(op));
    let any = false;
    for (const row of rows) {
      row.hidden = !(whole || row.cells[0].textContent.toLowerCase().includes(text(op)));
      any ||= !row.hidden;
    }
    head.hidden = !any;
  }
}

if (filter !== null) {
  filter.addEventListener("input", showRuns);
  only.addEventListener("change", showRuns);
  op.addEventListener("input", showOperations);
  if (old !== null) old.addEventListener("change", showRuns);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === filter || event.target === op;
    if (typing && event.key === "Escape") event.target.blur();
    if (!typing && event.key === "/") {
      event.preventDefault();
      filter.focus();
    }
  });
  // The address keeps what is sought: index.html?filter=ggml&op=conv2d
  const asked = new URLSearchParams(location.search);
  for (const field of [filter, op, only]) if (asked.has(field.id)) field.value = asked.get(field.id);
  showRuns();
  showOperations();
}
