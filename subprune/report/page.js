for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
    catch { button.textContent = "select the text to copy it"; }
  });
}
for (const svg of document.querySelectorAll("svg[data-errors]")) {
  const errors = JSON.parse(svg.dataset.errors), units = Number(svg.dataset.units);
  const probe = svg.querySelector(".probe"), said = svg.parentElement.querySelector(".said"), old = said.textContent;
  const [x0, x1, y0, y1, least] = svg.dataset.frame.split(",").map(Number);
  const show = event => {
    const box = svg.getBoundingClientRect(), scale = 260 / box.width;
    const share = ((event.clientX - box.left) * scale - x0) / (x1 - x0);
    const at = Math.min(errors.length - 1, Math.max(0, Math.round(share * (errors.length - 1))));
    const [k, e] = errors[at], height = Math.log10(Math.max(e, least)) / Math.log10(least);
    probe.setAttribute("cx", x0 + k / units * (x1 - x0));
    probe.setAttribute("cy", y0 + height * (y1 - y0));
    probe.style.visibility = "visible";
    said.textContent = `with ${k} of ${units} units: ${(100 * e).toPrecision(3)}% left`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => { probe.style.visibility = "hidden"; said.textContent = old; });
}
