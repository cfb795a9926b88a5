"""The HTML report in a real browser: it fits a phone and a laptop, light and dark, and fetches
nothing.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import subprune
from subprune.guarantees import guarantees
from subprune.report.figures import Report
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

WATCH = """
<script>
const seen = {errors: []};
window.addEventListener("load", () => setTimeout(() => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    const svg = page.querySelector("svg[data-errors]"), box = svg.getBoundingClientRect();
    const at = {clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true};
    svg.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", at));
    seen[frame.width] = {
      wide: root.scrollWidth, shown: root.clientWidth, said: page.querySelector(".said").textContent,
      back: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
      drawings: page.querySelectorAll("svg").length,
      asked: frame.contentWindow.performance.getEntriesByType("resource").length,
    };
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


def test_page_is_complete_and_alone(report: Report) -> None:
    page = report.to_html()
    for words in (
        "What went where",
        "Error curves",
        "Guarantees",
        "Left as it was",
        "Make it again",
        "of 20 calls",
    ):
        assert words in page
    assert all(g.name in page for g in report.plan.groups)
    assert "residual stream" in page
    assert not re.search(r"""(src|href)=|@import|url\(|https?://""", page)
    assert "subprune.prune(model, data, " in html.unescape(page)
    assert len(page) < 400_000


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(report: Report, tmp_path: Path, scheme: str) -> None:
    content = html.escape(report.to_html(), quote=True)
    frames = "".join(
        f'<iframe width="{w}" height="800" srcdoc="{content}"></iframe>' for w in (360, 1280)
    )
    page = tmp_path / "watch.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{WATCH}", encoding="utf-8")
    found = browse(page, f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', found, re.S)[1]))  # type: ignore[index]
    for width in ("360", "1280"):
        assert seen[width]["wide"] <= seen[width]["shown"]  # nothing sticks out sideways
        assert seen[width]["drawings"] == 1 + len(report.plan.groups)
        # the script runs
        assert re.fullmatch(r"with \d+ of \d+ units: .*% left", seen[width]["said"])
        assert seen[width]["asked"] == 0  # nothing was fetched
        light = sum(map(int, re.findall(r"\d+", seen[width]["back"])[:3])) > 3 * 128
        assert light == (scheme == "light")
