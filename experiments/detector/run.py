"""A real detector pruned: boxes and labelled objects before and after.

    python experiments/detector/run.py yolov8n.pt CALIBRATION TEST OUT [--labels FOLDER]
        [--speedup 1.5 | --compression 1.2] [--augment mirror] [--recover MINUTES] [--export]
        [--rows FILE.csv]

CALIBRATION and TEST are folders of photographs. On TEST, boxes of the dense model (score above
0.25) are what the pruned one should find: a box is kept if one of the same class overlaps it by
half. `--labels` names a folder with a text file per image, a line "class x y w h" per object in
shares of its sides, as COCO128 has them: then both models' mAP at an overlap of one half is given.
OUT gets pictures with the boxes of both, the pruned model and, with --export, an ONNX file.

Weights are read without running anything from their file; they have a licence of their own
(YOLOv8's is AGPL-3.0), which holds for what is made of them too.
"""

from __future__ import annotations

import argparse
import csv
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from boxes import Boxes, boxes, matched, mean_precision
from checkpoint import read_tensors
from network import from_tensors
from torch import Tensor, nn

import subprune
from subprune.budget.felt import Felt

SUFFIXES = (".jpeg", ".jpg", ".png")
COLOURS = {"dense": (230, 80, 40), "pruned": (40, 120, 230)}
LEAST, SHOWN = 0.01, 0.25  # scores of boxes that count for mAP, and of those that are shown
GREY = 114  # what fills an image up to a square


def letterbox(file: Path, side: int) -> tuple[Tensor, Any]:
    """[3, side, side] in 0 … 1, and the same as a picture."""
    from PIL import Image

    with Image.open(file) as image:
        rgb = image.convert("RGB")
    factor = side / max(rgb.size)
    width, height = (max(1, round(factor * s)) for s in rgb.size)
    left, top = (side - width) // 2, (side - height) // 2
    canvas = Image.new("RGB", (side, side), (GREY,) * 3)
    canvas.paste(rgb.resize((width, height), Image.Resampling.BILINEAR), (left, top))
    x = torch.from_numpy(np.array(canvas)).permute(2, 0, 1).float() / 255
    return x, canvas


def labelled(file: Path, labels: Path, side: int) -> Boxes:
    """The objects of an image, in the pixels of the square; none where there is no file."""
    from PIL import Image

    path = labels / f"{file.stem}.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    with Image.open(file) as image:
        size = torch.tensor(image.size, dtype=torch.float32)
    rows = [[float(v) for v in line.split()[:5]] for line in lines if line.strip()]
    found = torch.tensor(rows).reshape(-1, 5)
    scale = side * size / size.max()
    centre = found[:, 1:3] * scale + (side - scale) / 2
    half = found[:, 3:5] * scale / 2
    corners = torch.cat([centre - half, centre + half], 1)
    return Boxes(corners, torch.ones(len(found)), found[:, 0].long())


def detected(model: nn.Module, images: Tensor) -> list[Boxes]:
    """Boxes of every image, those of low scores among them."""
    with torch.no_grad():
        return [boxes(one, LEAST) for part in images.split(8) for one in model(part)]


def shown(found: Sequence[Boxes]) -> list[Boxes]:
    """The boxes a user would see."""
    return [b.part(b.scores > SHOWN) for b in found]


def compared(found: Sequence[Boxes], wanted: Sequence[Boxes]) -> dict[str, float]:
    """Shares in per cent: of the wanted boxes that were found, and of the found that were wanted."""
    hits = sum(len(matched(a, b)) for a, b in zip(found, wanted, strict=True))
    total, given = sum(map(len, wanted)), sum(map(len, found))
    recall, precision = hits / max(1, total), hits / max(1, given)
    f1 = 2 * recall * precision / max(1e-9, recall + precision)
    return {
        "wanted": total,
        "found": given,
        "recall": round(100 * recall, 1),
        "precision": round(100 * precision, 1),
        "f1": round(100 * f1, 1),
    }


def drawn(picture: Any, both: dict[str, Boxes], out: Path) -> None:
    """Both models' boxes on one picture, and the numbers of their classes."""
    from PIL import ImageDraw

    pen = ImageDraw.Draw(picture)
    for i, (name, found) in enumerate(both.items()):
        for corners, kind in zip(found.corners.tolist(), found.classes.tolist(), strict=True):
            x0, y0, x1, y1 = (min(max(v, 0), picture.width - 1) for v in corners)
            if x1 > x0 and y1 > y0:
                pen.rectangle((x0, y0, x1, y1), outline=COLOURS[name], width=2)
                pen.text((x0 + 3, y0 + 2 + 12 * i), f"{name} {kind}", fill=COLOURS[name])
    picture.save(out)


def images_of(folder: Path, count: int) -> list[Path]:
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return files[:count]


def figures(
    options: argparse.Namespace, result: subprune.Result, tests: Sequence[Path], pixels: Tensor
) -> tuple[dict[str, Any], list[Boxes], list[Boxes]]:
    """What is compared on the test images, and the boxes a user would see."""
    assert result.dense is not None
    before, after = (detected(m, pixels) for m in (result.dense, result.model))
    row: dict[str, Any] = {
        f"boxes_{k}": v for k, v in compared(shown(after), shown(before)).items()
    }
    if options.labels is not None:
        truth = [labelled(f, options.labels, options.side) for f in tests]
        row["objects"] = sum(map(len, truth))
        row["map50_dense"] = round(100 * mean_precision(before, truth), 1)
        row["map50_pruned"] = round(100 * mean_precision(after, truth), 1)
    return row, shown(before), shown(after)


def goal(options: argparse.Namespace) -> tuple[str, float]:
    """What is asked for, and how many times less of it."""
    if options.compression is not None:
        return "compression", options.compression
    return "speedup", options.speedup


def pruned(options: argparse.Namespace, seen: Tensor) -> subprune.Result:
    dense = from_tensors(read_tensors(options.weights))
    dense.decode = False
    what, factor = goal(options)
    how = {"n_samples": None, "seed": options.seed, "method": options.method}
    if options.method == "auto":  # a modest cut should leave whole what the boxes hang on
        how["allocate"] = Felt(share=1.0, mix=1.0)
    result = subprune.prune(dense, seen, augment=options.augment, **{what: factor}, **how)
    if options.recover:
        result = subprune.recover(result, seen, minutes=options.recover, augment=False, batch=16)
    dense.decode = result.model.decode = True
    return result


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, help="a checkpoint of YOLOv8n or YOLOv8s")
    parser.add_argument("calibration", type=Path, help="folder of photographs")
    parser.add_argument("test", type=Path, help="folder of other photographs")
    parser.add_argument("out", type=Path, help="folder for pictures and models")
    parser.add_argument("--labels", type=Path, help="folder of the test images' labels")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--speedup", type=float, default=1.5, help="FLOPs before / after")
    asked.add_argument("--compression", type=float, help="parameters before / after")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--augment", choices=["mirror"], help="further views of the photographs")
    parser.add_argument("--images", type=int, default=128, help="to calibrate on, at most")
    parser.add_argument("--tests", type=int, default=128, help="images to judge on, at most")
    parser.add_argument("--side", type=int, default=320, help="pixels, a multiple of 32")
    parser.add_argument("--recover", type=float, default=0.0, help="minutes of training after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", action="store_true", help="write an ONNX file too")
    parser.add_argument("--rows", type=Path, help="a CSV that gets the figures as a row")
    options = parser.parse_args(words)
    if options.side % 32:
        sys.exit(f"--side {options.side} is not a multiple of 32, the coarsest map's step")
    files = images_of(options.calibration, options.images)
    tests = images_of(options.test, options.tests)
    seen = torch.stack([letterbox(f, options.side)[0] for f in files])
    unseen = [letterbox(f, options.side) for f in tests]
    begun = time.perf_counter(), time.process_time()
    result = pruned(options, seen)
    spent = time.perf_counter() - begun[0], time.process_time() - begun[1]
    print(result)
    found, before, after = figures(options, result, tests, torch.stack([x for x, _ in unseen]))
    dense = result.dense
    assert dense is not None
    row: dict[str, Any] = {
        "weights": options.weights.stem,
        "method": ", ".join(named(options)),
        "goal": "{}={:g}".format(*goal(options)),
        "side": options.side,
        "calibration": len(files),
        "test": len(tests),
        "seed": options.seed,
        **found,
        "parameters_before": sum(p.numel() for p in dense.parameters()),
        "parameters_after": sum(p.numel() for p in result.model.parameters()),
        "flops_before": result.report.flops[0],
        "flops_after": result.report.flops[1],
        "seconds": round(spent[0], 1),
        "cpu_seconds": round(spent[1], 1),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
    }
    for name, value in row.items():
        print(f"{name}: {value}")
    if options.rows is not None:
        add_row(options.rows, row)
    options.out.mkdir(parents=True, exist_ok=True)
    for i in sorted(range(len(before)), key=lambda i: -len(before[i]))[:6]:
        both = {"dense": before[i], "pruned": after[i]}
        drawn(unseen[i][1], both, options.out / f"{tests[i].stem}.png")
    subprune.save(result, options.out / "pruned.safetensors")
    if options.export:
        print(subprune.export(result, options.out / "pruned.onnx"))


def named(options: argparse.Namespace) -> list[str]:
    """The method and what was done besides."""
    views = [] if options.augment is None else [f"{options.augment} images too"]
    minutes = [f"recovered for {options.recover:g} min"] if options.recover else []
    return [options.method, *views, *minutes]


def add_row(path: Path, row: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = []
    if path.is_file():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    columns = list(dict.fromkeys(name for r in [*rows, row] for name in r))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows([*rows, row])


if __name__ == "__main__":
    main()
