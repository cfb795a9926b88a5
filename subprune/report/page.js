"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const percent = x => 0 < x && x < 1e-6 ? "under 0.0001%" : `${(100 * x).toPrecision(3)}%`;  // as in terminal.py
document.documentElement.classList.add("scripted");

for (const button of all("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
    catch { button.textContent = "select the text to copy it"; }
  });
}

// ---- curves: the error of any number of units --------------------------------------------------
const FLOOR = 1e-4;  // as in svg.py
const heightOf = error => 1 - Math.log10(Math.min(1, Math.max(error, FLOOR))) / Math.log10(FLOOR);
function errorAt(curve, k) {  // between the points that the page has
  let low = curve[0];
  for (const point of curve) {
    if (point[0] >= k) {
      const width = point[0] - low[0];
      return width ? low[1] + (point[1] - low[1]) * (k - low[0]) / width : point[1];
    }
    low = point;
  }
  return low[1];
}
function put(dot, x, error) {
  dot.style.left = `${100 * x}%`;
  dot.style.top = `${100 * (1 - heightOf(error))}%`;
  dot.style.visibility = "visible";
}
function pointed(element, show, leave) {
  for (const kind of ["pointermove", "pointerdown"]) element.addEventListener(kind, show);
  element.addEventListener("pointerleave", leave);
}
for (const plot of all("[data-curve]")) {
  const group = data.groups[plot.dataset.curve], box = plot.querySelector(".box");
  const probe = plot.querySelector(".probe"), said = plot.parentElement.querySelector(".said");
  const old = said.textContent;
  pointed(box, event => {
    const place = box.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - place.left) / place.width));
    const k = Math.round(share * group.units), error = errorAt(group.curve, k);
    put(probe, k / group.units, error);
    said.textContent = `with ${k} of ${group.units} units: ${percent(error)} left`;
  }, () => { probe.style.visibility = "hidden"; said.textContent = old; });
}
for (const plot of all("[data-all]")) {
  const box = plot.querySelector(".box"), said = plot.parentElement.querySelector(".said");
  const old = said.textContent;
  const light = number => {
    for (const x of all("[data-line]", plot)) x.classList.toggle("lit", x.dataset.line === number);
    for (const x of all("[data-dot]", plot)) x.classList.toggle("lit", x.dataset.dot === number);
  };
  pointed(box, event => {
    const place = box.getBoundingClientRect();
    const x = (event.clientX - place.left) / place.width, y = 1 - (event.clientY - place.top) / place.height;
    let best = null, least = Infinity;
    for (const line of all("[data-line]", plot)) {
      const group = data.groups[line.dataset.line], error = errorAt(group.curve, x * group.units);
      const far = Math.abs(heightOf(error) - y);
      if (far < least) [best, least] = [line.dataset.line, far];
    }
    if (best === null) return;
    const group = data.groups[best], k = Math.round(Math.min(1, Math.max(0, x)) * group.units);
    light(best);
    said.textContent = `${group.name}: with ${k} of ${group.units} units ${percent(errorAt(group.curve, k))} left; `
      + `${group.kept} were kept`;
  }, () => { light(null); said.textContent = old; });
}

// ---- what other sizes would cost ---------------------------------------------------------------
const widths = power => data.groups.map(g =>
  g.kept === g.units ? g.units : Math.max(1, Math.round(g.units * (g.kept / g.units) ** power)));
function costs(counts) {
  const lengths = data.lengths.map(([fixed, groups, each]) =>
    groups.reduce((sum, g, i) => sum + each[i] * counts[data.order[g]], fixed));
  const total = products => products.reduce((sum, [factor, used]) =>
    sum + used.reduce((product, i) => product * lengths[i], factor), 0);
  return [total(data.params), total(data.flops) / data.inputs];
}
const slider = document.getElementById("size");
if (slider) {
  const said = document.getElementById("sized"), call = document.getElementById("budgets");
  const probe = document.querySelector(".sized .probe");
  const shareOf = counts => costs(counts)[0] / data.dense[0];
  const least = shareOf(widths(data.furthest));
  const plan = data.groups.map(g => g.kept);
  const big = x => x >= 1e9 ? `${(x / 1e9).toPrecision(3)} G` : x >= 1e6 ? `${(x / 1e6).toPrecision(3)} M`
    : Math.round(x).toLocaleString("en");
  const powerFor = share => {  // by halves: fewer parameters the higher the power
    let [low, high] = [0, data.furthest];
    for (let i = 0; i < 40; i++) {
      const middle = (low + high) / 2;
      if (shareOf(widths(middle)) > share) low = middle; else high = middle;
    }
    return high;
  };
  // as mean_error in other_sizes.py: what a group loses itself, and what it has from earlier ones
  const own = (g, k) => Math.max(0, errorAt(g.curve, k) - errorAt(g.curve, g.units));
  const ownSum = pairs => pairs.reduce((sum, [g, k]) => sum + own(g, k), 0);
  const show = counts => {
    const [params, flops] = costs(counts), share = params / data.dense[0];
    const cut = data.groups.map((g, i) => [g, counts[i]]).filter(([g]) => g.kept < g.units && g.curve.length > 1);
    const grown = ownSum(cut) / (ownSum(cut.map(([g]) => [g, g.kept])) || Infinity);
    const errors = cut.map(([g, k]) =>
      [Math.min(1, own(g, k) + grown * errorAt(g.curve, g.units)), g.name]);
    let words = `${big(params)} parameters (${(data.dense[0] / params).toFixed(2)}× fewer, ${percent(share)} left), `
      + `${(data.dense[1] / flops).toFixed(2)}× fewer FLOPs`;
    if (errors.length) {
      const mean = errors.reduce((sum, [x]) => sum + x, 0) / errors.length;
      const worst = errors.reduce((a, b) => b[0] > a[0] ? b : a);
      words += `; error left in a group: mean ${percent(mean)}, at most ${percent(worst[0])} (${worst[1]})`;
      if (probe) put(probe, Math.min(1, Math.max(0, (share - least) / (1 - least))), mean);
    }
    said.textContent = words;
    const budgets = data.groups.map((g, i) => `${JSON.stringify(g.name)}: ${counts[i]}`);
    call.textContent = `subprune.prune(model, data, budgets={${budgets.join(", ")}})`;
  };
  const value = (shareOf(plan) - least) / (1 - least);
  slider.value = 1000 * value;
  slider.addEventListener("input", () =>
    show(Math.abs(slider.value / 1000 - value) < .002 ? plan : widths(powerFor(least + slider.value / 1000 * (1 - least)))));
  show(plan);
}

// ---- many groups: stages that fold, and a search -----------------------------------------------
const table = document.getElementById("groups"), folds = all("#groups .fold");
const fold = (button, closed) => {
  button.setAttribute("aria-expanded", String(!closed));
  button.closest("tbody").classList.toggle("closed", closed);
};
for (const button of folds) {
  fold(button, true);
  button.addEventListener("click", () => fold(button, button.getAttribute("aria-expanded") === "true"));
}
for (const button of all("button[data-fold]")) {
  button.addEventListener("click", () => {
    const closed = button.textContent.startsWith("close");
    for (const other of folds) fold(other, closed);
    button.textContent = `${closed ? "open" : "close"} all stages`;
  });
}
const search = document.getElementById("search");
if (search) search.addEventListener("input", () => {
  const wanted = search.value.trim().toLowerCase();
  let count = 0;
  table.classList.toggle("searching", wanted !== "");
  for (const body of table.tBodies) {
    let found = 0;
    for (const row of all("tr[data-words]", body)) {
      const fits = row.dataset.words.includes(wanted);
      row.classList.toggle("missed", !fits);
      found += fits;
    }
    body.classList.toggle("missed", !found);
    count += found;
  }
  const groups = all("tr[data-words]", table).length;
  document.getElementById("matches").textContent = wanted ? `${count} of ${groups} groups` : `${groups} groups`;
});

// ---- the picture of all layers -----------------------------------------------------------------
for (const said of all(".said[data-hint]")) {
  const old = said.textContent || "Point at a column to see its layer.";
  said.textContent = old;
  for (const column of all(".column", said.parentElement)) {
    pointed(column, () => { column.classList.add("lit"); said.textContent = column.title; },
      () => { column.classList.remove("lit"); said.textContent = old; });
  }
}

addEventListener("beforeprint", () => { for (const x of all("details")) x.open = true; });
