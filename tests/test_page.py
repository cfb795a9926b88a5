"""The HTML report, also in a real browser: it fits a phone and a laptop, light and dark, shows
groups by the dozen, answers a slider, and fetches nothing.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subprune
from subprune.guarantees import guarantees
from subprune.plan import GroupPlan
from subprune.report.figures import LayerWidth, Report
from subprune.report.other_sizes import mean_error, widths
from subprune.report.stages import stages
from subprune.report.terminal import percent
from subprune.zoo.models import ResNet

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--virtual-time-budget=3000",
)

# Runs beside the pages, which are frames of several widths, and writes down what it sees.
WATCH = """
<script>
const seen = {};
const boxes = (page, what) => [...page.querySelectorAll(what)].map(x => x.getBoundingClientRect())
  .filter(b => b.width && b.height);
function collisions(list) {
  let count = 0;
  list.forEach((a, i) => list.slice(i + 1).forEach(b => {
    const over = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const under = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    count += over > 1 && under > 1;
  }));
  return count;
}
function labels(page) {  // of the text itself: a cell may be wider than its words
  const found = [];
  for (const cell of page.querySelectorAll("thead th, .ticks span, .ends span, .column small, .size h3")) {
    const range = page.createRange();
    range.selectNodeContents(cell);
    const box = range.getBoundingClientRect();
    if (box.width && box.height) found.push(box);
  }
  return found;
}
window.addEventListener("load", () => setTimeout(() => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
    const say = (element, kind, more) => element.dispatchEvent(new view[more ? "PointerEvent" : "Event"](
      kind, {bubbles: true, ...more}));
    const rows = () => [...page.querySelectorAll("#groups tr[data-words]")].filter(x => x.offsetHeight).length;
    const found = {
      wide: root.scrollWidth, shown: root.clientWidth, folded: rows(),
      spill: [...page.querySelectorAll(".groups")].map(x => x.scrollWidth - x.clientWidth),
      back: view.getComputedStyle(page.body).backgroundColor,
      asked: view.performance.getEntriesByType("resource").length,
    };
    for (const x of page.querySelectorAll("details")) x.open = true;
    found.collisions = collisions(labels(page));
    found.drawings = page.querySelectorAll("svg").length;
    const box = page.querySelector("[data-curve] .box"), place = box.getBoundingClientRect();
    say(box, "pointermove", {clientX: place.left + place.width / 2, clientY: place.top + 20});
    found.said = page.querySelector(".curve .said").textContent;
    const all = page.querySelector("[data-all] .box"), whole = all.getBoundingClientRect();
    say(all, "pointermove", {clientX: whole.left + whole.width / 2, clientY: whole.top + 20});
    found.lit = page.querySelectorAll("[data-line].lit").length;
    const slider = page.getElementById("size");
    found.plan = page.getElementById("sized").textContent;
    slider.value = 900;
    say(slider, "input");
    found.larger = page.getElementById("sized").textContent;
    found.call = page.getElementById("budgets").textContent;
    for (const x of page.querySelectorAll("button[data-fold]")) x.click();
    found.open = rows();
    const search = page.getElementById("search");
    if (search) {
      search.value = "layer4.";
      say(search, "input");
      found.matches = [rows(), page.getElementById("matches").textContent];
    }
    seen[frame.width] = found;
  }
  document.body.innerHTML = "<pre id=seen></pre>";
  document.getElementById("seen").textContent = JSON.stringify(seen);
}, 300));
</script>
"""


@pytest.fixture(scope="module")
def report() -> Report:
    torch.manual_seed(0)
    model, x = ResNet(20).eval(), torch.randn(6, 3, 32, 32)
    only = ["layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1"]
    result = subprune.prune(
        model, x, speedup=1.1, method="layer-in-change", only=only, time_calls=True
    )
    return result.with_guarantees(guarantees(model, x, budgets=result.plan.counts)).report


@pytest.fixture(scope="module")
def deep(report: Report) -> Report:
    """Many groups: those of the report, again and again under other names."""
    groups = [
        replace(g, name=f"layer{n // 6 + 1}.{n % 6}.some_long_name.{g.name.split('.')[-1]}")
        for n, g in enumerate(list(report.plan.groups) * 8)
    ]
    saved = {g.name: (1234 + n, 56789) for n, g in enumerate(groups)}
    layers = tuple(LayerWidth(g.name, "Conv2d", g.units, len(g.kept)) for g in groups)
    costs = report.costs
    assert costs is not None
    own = replace(costs, groups=tuple(g.name for g in groups))
    plan = replace(report.plan, groups=tuple(groups))
    notes = ("a note",)
    return replace(report, plan=plan, savings=saved, layers=layers, costs=own, notes=notes)


def test_page_is_complete_and_alone(report: Report) -> None:
    page = report.to_html()
    for words in (
        "What went where",
        "What other sizes would cost",
        "Error curves",
        "Guarantees",
        "Left as it was",
        "Make it again",
        "of 20 calls",
    ):
        assert words in page
    assert all(g.name.replace(".", ".<wbr>") in page for g in report.plan.groups)
    assert "residual stream" in page
    assert not re.search(r"""(src|href)=|@import|url\(|https?://""", page)
    assert "subprune.prune(model, data, " in html.unescape(page)
    assert len(page) < 400_000


def test_what_counts_most_stands_first(report: Report) -> None:
    shown = replace(report, accuracy=(0.9881, 0.9808), accuracy_on="10,000 test images")
    page = shown.to_html()
    order = ["98.08%", "same answer as the dense model", "Parameters", "Latency", "Group by group"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "accuracy on 10,000 test images, 98.81% before (−0.73 points)" in page


def test_no_section_is_empty(report: Report) -> None:
    plain = replace(
        report, guarantees=(), exports=(), refused={}, notes=(), layers=(), costs=None, savings={}
    )
    groups = tuple(replace(g, errors=(), stages=()) for g in plain.plan.groups)
    page = replace(plain, plan=replace(plain.plan, groups=groups)).to_html()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Group by group", "Make it again"]


def test_bars_mean_what_stands_beside_them(report: Report) -> None:
    page = report.to_html()
    (p, q), (f, g) = report.parameters, report.flops
    for before, after in ((p, q), (f, g)):
        assert f'<i style="width:{100 * after / before:.2f}%"></i>' in page
    for group in report.plan.groups:
        share = len(group.kept) / group.units
        words = f"{group.units:,} → {len(group.kept):,}</span>"
        bar = f'<span class="bar" title="{share:.0%} stay"><i style="width:{share:.1%}">'
        assert words + bar in page


def test_stages() -> None:
    def names(*given: str) -> list[tuple[str, int]]:
        groups = [
            GroupPlan(name=name, kind="neuron", units=2, kept=(0,), consumers=()) for name in given
        ]
        found = stages(groups)
        together = [g.name for stage in found for _, g in stage.groups]
        assert sorted(together) == sorted(given)
        return [(stage.name, len(stage.groups)) for stage in found]

    assert names("a", "b.c") == [("", 2)]
    blocks = [f"layer{i}.{j}.conv1" for i in (1, 2) for j in range(9)]
    assert names("conv1", *blocks) == [("conv1", 1), ("layer1", 9), ("layer2", 9)]
    layers = [f"model.layers.{i}.{part}" for i in range(20) for part in ("attn", "mlp")]
    assert names(*layers) == [
        ("model.layers.0–7", 16),
        ("model.layers.8–15", 16),
        ("model.layers.16–19", 8),
    ]
    assert names(*map(str, range(14))) == [("0–7", 8), ("8–13", 6)]
    assert names(*[f"x.{i}" for i in range(13)], "x")[-1] == ("x", 1)


def test_other_sizes_pass_through_the_plan(report: Report) -> None:
    assert widths(report, 1.0) == report.plan.counts
    assert widths(report, 0.0) == {g.name: g.units for g in report.plan.groups}
    smaller = widths(report, 2.0)
    for g in report.plan.groups:
        assert smaller[g.name] == round(len(g.kept) ** 2 / g.units)
    errors = [g.errors[len(g.kept)] for g in report.plan.groups]
    assert mean_error(report, report.plan.counts) == pytest.approx(sum(errors) / len(errors))


def test_nothing_is_lost_where_everything_stays() -> None:
    """A curve that ends above zero was measured behind layers that were pruned; at other sizes
    these are pruned otherwise.
    """
    torch.manual_seed(0)
    layers = [nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4)]
    shown = subprune.prune(nn.Sequential(*layers), torch.randn(64, 12), compression=2).report
    assert shown.plan.groups[1].errors[-1] > 0
    estimates = [mean_error(shown, widths(shown, power)) for power in (0, 0.5, 1, 2)]
    assert estimates[0] == 0
    assert estimates == sorted(estimates)


def browse(page: Path, *flags: str) -> str:
    if BROWSER is None:
        pytest.skip(
            "no chromium on this machine; apt-get install chromium to run the browser tests"
        )
    command = [
        BROWSER,
        *FLAGS,
        f"--user-data-dir={page.parent / 'profile'}",
        *flags,
        "--dump-dom",
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def watched(report: Report, folder: Path, scheme: str) -> dict[str, dict[str, Any]]:
    """What a browser shows of the page on a phone and on a laptop."""
    content = html.escape(report.to_html(), quote=True)
    frames = "".join(
        f'<iframe width="{w}" height="800" srcdoc="{content}"></iframe>' for w in (360, 1280)
    )
    page = folder / "watch.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{WATCH}", encoding="utf-8")
    found = browse(page, f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', found, re.S)[1]))  # type: ignore[index]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(report: Report, tmp_path: Path, scheme: str) -> None:
    for seen in watched(report, tmp_path, scheme).values():
        assert seen["wide"] <= seen["shown"]  # nothing sticks out sideways
        assert seen["spill"] == [0]  # nor does the table of groups
        assert seen["collisions"] == 0
        assert seen["drawings"] == 2 + len(report.plan.groups)
        assert re.fullmatch(r"with \d+ of \d+ units: .*% left", seen["said"])  # the script runs
        assert seen["lit"] == 1
        assert seen["asked"] == 0  # nothing was fetched
        light = sum(map(int, re.findall(r"\d+", seen["back"])[:3])) > 3 * 128
        assert light == (scheme == "light")


def test_the_slider_counts_as_the_library_does(report: Report, tmp_path: Path) -> None:
    seen = watched(report, tmp_path, "light")["1280"]
    assert report.costs is not None
    assert seen["plan"].startswith(f"{report.parameters[1]:,} parameters")
    counts = {n: int(k) for n, k in re.findall(r'"([\w.]+)": (\d+)', seen["call"])}
    assert counts.keys() == report.plan.counts.keys()
    assert sum(counts.values()) > sum(report.plan.counts.values())
    assert seen["larger"].startswith(f"{report.costs.total('params', counts):,.0f} parameters")
    mean = float(re.search(r"mean ([\d.e-]+)%", seen["larger"])[1])  # type: ignore[index]
    assert mean == pytest.approx(100 * mean_error(report, counts), rel=0.01)


def test_a_deep_network_is_folded_and_searched(deep: Report, tmp_path: Path) -> None:
    for seen in watched(deep, tmp_path, "light").values():
        assert seen["wide"] <= seen["shown"]
        assert seen["spill"] == [0]
        assert seen["collisions"] == 0
        assert (seen["folded"], seen["open"]) == (0, 24)
        assert seen["matches"] == [6, "6 of 24 groups"]


def test_without_a_script_everything_is_open(deep: Report) -> None:
    """What folds or slides is switched on by the script."""
    page = deep.to_html().split("<main>")[1].split("</main>")[0]
    assert "closed" not in page
    assert page.count('class="tools script"') == page.count('class="script"') == 1


def test_rounding_errors_are_not_shown_in_digits() -> None:
    assert percent(3e-16) == "under 0.0001%"
    assert [percent(x) for x in (0.0, 2e-6, 0.0123, float("nan"))] == [
        "0.00%",
        "0.0002%",
        "1.23%",
        "–",
    ]


def test_printed_pages(deep: Report, tmp_path: Path) -> None:
    """On paper: every group once, the sum once and not on every page, no hints for a pointer, and
    no drawing torn in two.
    """
    if shutil.which("pdftotext") is None:
        pytest.skip(
            "no pdftotext on this machine; apt-get install poppler-utils to read what is printed"
        )
    page, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(deep.to_html(), encoding="utf-8")
    browse(page, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    said = subprocess.run(["pdftotext", "-raw", str(printed), "-"], capture_output=True, check=True)
    pages = said.stdout.decode().split("\f")
    text = " ".join("".join(pages).split())
    assert 2 < len(pages) < 12
    assert text.count("all 24 groups") == 1
    assert "Point at" not in text
    assert not re.search("[▸▾]", text)
    for title in ("Error curves", "What went where"):  # a drawing on the page of its title
        assert re.search(
            rf"{title}.*(all kept|kept removed)",
            " ".join(next(p for p in pages if title in p).split()),
        )
