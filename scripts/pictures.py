"""Pictures of reports for the documentation, taken in headless Chromium.

    python scripts/pictures.py

docs/report.png: LeNet at c = 4, as `subprune demo` prunes it; docs/report-deep.png: a network of the
shape of ResNet50 with random weights, in the dark; docs/report-phone.png: the same on a phone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

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


def shoot(
    report: Report, target: Path, size: tuple[int, int], *, dark: bool = False, style: str = ""
) -> None:
    """A picture of the page's upper left corner; `style` is CSS added to it."""
    if BROWSER is None:
        sys.exit("error: no chromium on this machine; apt-get install chromium")
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
        command = [
            *(BROWSER, *FLAGS),
            f"--user-data-dir={folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--window-size={max(width, _NARROWEST)},{height}",
            f"--screenshot={folder / 'shot.png'}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
        picture = Image.open(folder / "shot.png").convert("RGB").crop((0, 0, width, height))
        picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(DOCS.parent)}: {target.stat().st_size / 1e3:.0f} kB")


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


def deep() -> Report:
    """Many groups."""
    torch.manual_seed(0)
    return subprune.prune(ResNet50().eval(), torch.randn(64, 3, 64, 64), compression=2).report


def main() -> None:
    shoot(lenet(), DOCS / "report.png", (1000, 880))
    many = deep()
    shoot(many, DOCS / "report-deep.png", (1000, 1060), dark=True, style=NO_SECONDS)
    shoot(many, DOCS / "report-phone.png", (360, 800), style=NO_SECONDS)


if __name__ == "__main__":
    main()
