"""What the report says, and what is true on unseen images, for few and many calibration images.

    python experiments/few_inputs.py                        LeNet on the shipped sample, five seeds
    python experiments/few_inputs.py --resnet50 WEIGHTS --calibration FOLDER --validation FOLDER
    python experiments/few_inputs.py --page                 only the page, from the committed rows

ResNet50: weights with torchvision's names for the network whose stages stride in their first 1×1 convolution
(Keras' ResNet50), a folder of images to calibrate on, and a folder with one sub-folder of images per class number.
Every network is pruned with the default fit and with the plain one (ridge=0). Rows go to
experiments/results/few-inputs/rows.csv, the table to docs/results-few-inputs.md.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from csv_rows import read_rows, write_rows
from torch import Tensor, nn

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

HERE = Path(__file__).parent
ROWS = HERE / "results" / "few-inputs" / "rows.csv"
PAGE = HERE.parent / "docs" / "results-few-inputs.md"
FITS: dict[str, dict[str, Any]] = {"default": {}, "plain": {"ridge": 0}}
MEAN = torch.tensor([123.68, 116.779, 103.939]).view(3, 1, 1)
Row = dict[str, Any]


# ---- ResNet50 ------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1×1 with the stride, 3×3, 1×1, and a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = (
            nn.Conv2d(inputs, width, 1, stride, bias=False),
            nn.BatchNorm2d(width, 1e-3),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width, 1e-3),
        )
        self.conv3, self.bn3 = (
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs, 1e-3),
        )
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(outputs, 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """The network of Keras' weights, under torchvision's names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64, 1e-3)
        inputs = 64
        for i, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
            stage = []
            for block in range(blocks):
                stage.append(Bottleneck(inputs, width, 2 if i > 0 and block == 0 else 1))
                inputs = 4 * width
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(x.mean((2, 3)))


def resnet50(weights: Path) -> nn.Module:
    from safetensors.torch import load_file

    model = ResNet50()
    missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise SystemExit(
            f"{weights} does not fit ResNet50: missing {missing[:3]}, unknown {unexpected[:3]}"
        )
    return model.eval().to(memory_format=torch.channels_last)


def picture(path: Path) -> Tensor:
    """Short side 256, centre 224 × 224, RGB from 0 to 255 less the mean."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        rgb = image.convert("RGB")
        scale = 256 / min(rgb.size)
        rgb = rgb.resize(
            (round(rgb.width * scale), round(rgb.height * scale)), Image.Resampling.BILINEAR
        )
        left, top = (rgb.width - 224) // 2, (rgb.height - 224) // 2
        pixels = np.array(rgb.crop((left, top, left + 224, top + 224)))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() - MEAN


def calibration_images(folder: Path, count: int, seed: int) -> Tensor:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpeg", ".jpg", ".png"))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))[
        :count
    ].tolist()
    return torch.stack([picture(files[i]) for i in order])


def validation_images(folder: Path, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 50 with labels: the first image of every class, then the second, …"""
    classes = sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: int(p.name))
    files = [sorted(c.iterdir()) for c in classes]
    chosen = [
        (own[i], int(c.name))
        for i in range(5)
        for c, own in zip(classes, files, strict=True)
        if i < len(own)
    ]
    for start in range(0, min(count, len(chosen)), 50):
        part = chosen[start : min(start + 50, count)]
        yield torch.stack([picture(p) for p, _ in part]), torch.tensor([label for _, label in part])


# ---- measuring -----------------------------------------------------------------------------------


def share(before: Tensor, after: Tensor) -> float:
    """Percentage of equal answers."""
    return round(100 * float((before == after).double().mean()), 2)


@torch.no_grad()
def answers(model: nn.Module, images: Sequence[Tensor]) -> Tensor:
    return torch.cat([model(x).argmax(1) for x in images])


def measured(
    name: str,
    model: nn.Module,
    x: Tensor,
    c: float,
    unseen: Sequence[Tensor],
    labels: Tensor,
    before: Tensor,
    seed: int,
    others: Sequence[Tensor] = (),
) -> Iterator[Row]:
    """One row for each way of fitting.

    others: images from where the calibration images come from, which were not calibrated on. A
    network may have been trained on such images, and is surer of them than of the unseen ones.
    """
    alike = answers(model, others) if others else None
    for fit, options in FITS.items():
        started = time.perf_counter()
        result = subprune.prune(
            model,
            x,
            compression=c,
            method="asym-in-change",
            n_samples=None,
            seed=seed,
            time_calls=False,
            **options,
        )
        seconds = time.perf_counter() - started
        after = answers(result.model, unseen)
        report = result.report
        held_out = "" if report.held_out is None else round(100 * report.held_out.agreement, 2)
        yield {
            "network": name,
            "compression": c,
            "images": len(x),
            "seed": seed,
            "fit": fit,
            "dense_accuracy": round(100 * float((before == labels).double().mean()), 2),
            "accuracy": round(100 * float((after == labels).double().mean()), 2),
            "agreement": share(before, after),
            "agreement_alike": "" if alike is None else share(alike, answers(result.model, others)),
            "reported": held_out,
            "reported_fitted": round(100 * report.fitted.agreement, 2),
            "growth": round(max(g.growth for g in result.plan.groups if g.growth == g.growth), 2),
            "unseen_images": len(labels),
            "seconds": round(seconds, 1),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        }


def lenet_rows(counts: Sequence[int], seeds: Sequence[int]) -> Iterator[Row]:
    model, _ = shipped_lenet()
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    x, unseen, labels = train.inputs(), list(test.inputs().split(500)), test.labels
    before = answers(model, unseen)
    for count in counts:
        for seed in seeds:
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
            yield from measured("LeNet, MNIST", model, x[order], 4.0, unseen, labels, before, seed)


def resnet50_rows(args: argparse.Namespace) -> Iterator[Row]:
    model = resnet50(args.resnet50)
    pairs = list(validation_images(args.validation, args.unseen))
    unseen, labels = [x for x, _ in pairs], torch.cat([y for _, y in pairs])
    before = answers(model, unseen)
    for count in args.images or (64, 512):
        drawn = calibration_images(args.calibration, 2 * count, 0)
        x, others = drawn[:count], list(drawn[count:].split(50))
        yield from measured("ResNet50, ImageNet", model, x, 1.5, unseen, labels, before, 0, others)


# ---- files ---------------------------------------------------------------------------------------


def store(rows: Iterator[Row]) -> None:
    """Add rows to the file as they come; those of an earlier run of the same cell are replaced."""
    key = ("network", "compression", "images", "seed", "fit")
    kept: dict[tuple[str, ...], Row] = {
        tuple(str(row[k]) for k in key): row for row in read_rows(ROWS)
    }
    for row in rows:
        print(row, flush=True)
        kept[tuple(str(row[k]) for k in key)] = row
        write_rows(ROWS, kept.values())


def table() -> str:
    """Means over the seeds, one line per network, number of images and fit."""
    rows = read_rows(ROWS)
    cells: dict[tuple[str, str, int, str], list[Row]] = {}
    for row in rows:
        cells.setdefault(
            (row["network"], row["compression"], int(row["images"]), row["fit"]), []
        ).append(row)
    head = [
        "network",
        "images",
        "fit",
        "accuracy, unseen (dense)",
        "agreement, unseen",
        "agreement, others of the same source",
        "reported",
        "on fitted inputs",
        "largest growth of weights",
        "seeds",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for (network, c, count, fit), own in sorted(cells.items()):

        def average(name: str, own: list[Row] = own) -> str:
            values = [float(r[name]) for r in own if r.get(name)]
            return f"{mean(values):.1f}" if values else "–"

        lines.append(
            f"| {network}, c = {float(c):g} | {count} | {fit} | {average('accuracy')} ({average('dense_accuracy')}) | "
            f"{average('agreement')} | {average('agreement_alike')} | {average('reported')} | "
            f"{average('reported_fitted')} | {average('growth')} | "
            f"{len(own)} |"
        )
    return "\n".join(lines)


def write_page() -> None:
    machines = sorted({row["machine"] for row in read_rows(ROWS)})
    PAGE.write_text(
        "# Few calibration images: what is reported, and what is true\n\n"
        "Networks pruned with their default budgets, with the default fit (ridge chosen on held-out inputs) and with "
        "the plain least-squares fit of the paper (`ridge=0`). *Reported* is the agreement with the dense model that "
        "the report leads with: every input is judged by a version of the model fitted without it. *On fitted inputs* "
        "is what reports used to say. The columns before them are measured on images that were not calibrated on: "
        "test or validation images, and for ResNet50 also other images of the sample that it was calibrated on, which "
        "the network has probably been trained on and is surer of. "
        "All in percent, means over the seeds.\n\n"
        f"{table()}\n\n"
        "Made by `experiments/few_inputs.py` from experiments/results/few-inputs/rows.csv; "
        f"{'; '.join(machines)}. ResNet50: Keras' ImageNet weights, calibrated on images of a public sample with one "
        "image per class, judged on validation images.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--resnet50", type=Path, help="safetensors file with the weights")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--validation", type=Path)
    parser.add_argument("--unseen", type=int, default=1000, help="validation images")
    parser.add_argument("--images", type=int, nargs="+", help="numbers of calibration images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44, 45, 46])
    parser.add_argument("--fits", nargs="+", choices=list(FITS), default=list(FITS))
    parser.add_argument("--page", action="store_true", help="only the page, from committed rows")
    args = parser.parse_args()
    if args.page:
        write_page()
        return
    for fit in set(FITS) - set(args.fits):
        del FITS[fit]
    if args.resnet50:
        store(resnet50_rows(args))
    else:
        store(lenet_rows(args.images or (8, 32, 64, 128, 512), args.seeds))
    write_page()


if __name__ == "__main__":
    main()
