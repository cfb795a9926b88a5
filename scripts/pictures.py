"""Every picture of the documentation that does not take hours, made again.

    python scripts/pictures.py [--reports]

Pages of reports, taken in headless Chromium. docs/report.png: LeNet at c = 4, as `subprune demo`
prunes it; docs/report-deep.png: a network of the shape of ResNet50 with random weights, in the dark;
docs/report-phone.png: the same on a phone; docs/report-language.png: a language model of 30 blocks
with random weights on a phone, in the dark, its stages open; docs/report-print.png: the first two
pages that a printer makes of the deep one. After them, unless `--reports` is given, the journeys
(scripts/journeys.py) and the picture of measured rivals (experiments/front_picture.py).

docs/speed-scaling.png is a measurement: `make bench` makes it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageChops
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import subprune
from subprune.cli.demonstration import run_demo
from subprune.io.storage import read_report
from subprune.report.figures import Report

DOCS = Path(__file__).resolve().parents[1] / "docs"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=3000",
)
_COLOURS = 96
_NARROWEST = 500  # windows of Chromium are not narrower than this


def browse(page: Path, *flags: str) -> None:
    """Open a page in Chromium, with its profile beside it."""
    if BROWSER is None:
        sys.exit("error: pages are taken by chromium, which is not found; install it")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [BROWSER, *FLAGS, profile, *flags, page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)


def store(picture: Image.Image, target: Path) -> None:
    """Few colours: pages are drawings; small marks keep theirs."""
    few = picture.convert("RGB").quantize(_COLOURS, kmeans=3, dither=Image.Dither.NONE)
    few.save(target, optimize=True)
    print(f"{target.relative_to(DOCS.parent)}: {target.stat().st_size / 1e3:.0f} kB")


def trimmed(picture: Image.Image, margin: int = 16) -> Image.Image:
    """Without the empty rows at the end of a short page."""
    plain = picture.convert("RGB")
    behind = Image.new("RGB", plain.size, plain.getpixel((0, plain.height - 1)))
    _, _, _, last = ImageChops.difference(plain, behind).getbbox() or (0, 0, 0, plain.height)
    return picture.crop((0, 0, plain.width, min(plain.height, last + margin)))


def shoot(
    report: Report, target: Path, size: tuple[int, int], *, dark: bool = False, style: str = ""
) -> None:
    """A picture of the page's upper left corner; `style` is CSS added to it."""
    width, height = size
    html = report.to_html().replace("</head>", f"<style>{style}</style></head>")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = folder / "report.html"
        page.write_text(html, encoding="utf-8")
        if width < _NARROWEST:  # in a frame that is
            frame = f'<iframe src="report.html" width="{width}" height="{height}"></iframe>'
            css = "body { margin: 0 } iframe { border: 0 }"
            page = folder / "frame.html"
            page.write_text(f"<!doctype html><style>{css}</style>{frame}")
        browse(
            page,
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--window-size={max(width, _NARROWEST)},{height}",
            f"--screenshot={folder / 'shot.png'}",
        )
        store(trimmed(Image.open(folder / "shot.png").crop((0, 0, width, height))), target)


def print_out(report: Report, target: Path, pages: int = 2) -> None:
    """The first pages as a printer makes them, side by side."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page, printed = folder / "report.html", folder / "report.pdf"
        page.write_text(report.to_html(), encoding="utf-8")
        browse(page, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
        last = ["-l", str(pages)]
        command = ["pdftoppm", "-r", "70", *last, "-png", str(printed), str(folder / "sheet")]
        subprocess.run(command, check=True, timeout=120)
        sheets = [Image.open(path) for path in sorted(folder.glob("sheet*.png"))]
        width, height = sheets[0].size
        gap = 12
        desk = Image.new("RGB", (len(sheets) * (width + gap) + gap, height + 2 * gap), "#9aa3a8")
        for i, sheet in enumerate(sheets):
            desk.paste(sheet, (gap + i * (width + gap), gap))
        store(desk, target)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """The layers of ResNet50, a quarter as wide."""

    def __init__(self) -> None:
        super().__init__()
        width = 16
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        for i, (inner, blocks) in enumerate(((16, 3), (32, 4), (64, 6), (128, 3)), 1):
            stage = nn.Sequential()
            for j in range(blocks):
                stage.append(Bottleneck(width, inner, 2 if i > 1 and j == 0 else 1))
                width = 4 * inner
            setattr(self, f"layer{i}", stage)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(x.mean((2, 3)))


def lenet() -> Report:
    """The demo's network, with its accuracy on the test images."""
    with tempfile.TemporaryDirectory() as name:
        (row,) = run_demo(Path(name), (4.0,))
        return Report.from_json(read_report(Path(name) / row.file))


# How long random weights take says nothing.
NO_SECONDS = "h1 + p { display: none }"
# The table alone, with the groups of the first stages.
OPEN = "h1, h1 + p, .figures, .sizes, .about, .notes { display: none } h2 { margin-top: 0 }"
OPEN += " .closed:nth-of-type(1) tr:not(.head) { display: table-row }"
OPEN += " .closed:nth-of-type(1) .fold::before { content: '▾' !important }"


def deep() -> Report:
    """Many groups."""
    torch.manual_seed(0)
    return subprune.prune(ResNet50().eval(), torch.randn(64, 3, 64, 64), compression=2).report


def language() -> Report:
    """Thirty blocks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_hidden_layers=30, **sizes)).eval()
    batches = [{"input_ids": torch.randint(0, 100, (8, 32))} for _ in range(8)]
    return subprune.prune(model, batches, params="70%", of="blocks").report


def main(reports_alone: bool) -> None:
    if BROWSER is None or shutil.which("pdftoppm") is None:  # before the long work, not after it
        sys.exit("error: pages are taken by chromium, printed ones drawn by pdftoppm; install both")
    shoot(lenet(), DOCS / "report.png", (1000, 880))
    many = deep()
    shoot(many, DOCS / "report-deep.png", (1000, 1060), dark=True, style=NO_SECONDS)
    shoot(many, DOCS / "report-phone.png", (360, 800), style=NO_SECONDS)
    print_out(many, DOCS / "report-print.png")
    shoot(language(), DOCS / "report-language.png", (360, 800), dark=True, style=OPEN)
    if not reports_alone:
        for script in ("scripts/journeys.py", "experiments/front_picture.py"):
            subprocess.run([sys.executable, str(DOCS.parent / script)], check=True)


if __name__ == "__main__":
    main("--reports" in sys.argv[1:])
