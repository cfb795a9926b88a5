"""Guarantee tables for LeNet, ResNet56 and VGG11 beside the paper's two.

    python experiments/guarantee_tables.py --data-dir DATA --models-dir MODELS --output
    experiments/results/guarantees

The paper's tables give rank(A) / (2 · columns), or 1 at full rank, for 512 training images. That
number depends on how the rank is counted and on how the images went through the network, so each
layer has it four times:

* ``exact``: this package's rank in float64 (columns scaled to unit energy, tolerance 1e-10), network in eval mode;
* ``float32 rule``: singular values above max(rows, columns) · 2⁻²³ times the largest, PyTorch's default for float32
  matrices, on the same activations; the comparison itself is done in float64;
* ``paper's way``: the same rule on activations of a network in train mode (BatchNorm of the batch, dropout on) and
  augmented CIFAR-10 images, as the authors' code makes them;
* ``paper``: what the paper prints.

Writes ranks.csv, bounds.csv and table.md; --models runs some networks only and keeps the rows of
the others. With
--spot-check it writes only spot_check.csv: for three layers of ResNet56, the rank that ``torch.linalg.matrix_rank``
itself finds in the float32 matrix, beside that of the rule.
"""

from __future__ import annotations

import argparse
import copy
import csv
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subprune.guarantees import Guarantees, guarantees
from subprune.statistics.patches import Convolution, conv_rows, random_rows
from subprune.structure.analysis import find_groups
from subprune.zoo.datasets import Images, calibration_batches, load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights
from subprune_paper.augmentation import augment

PAPER = Path(__file__).parent / "data" / "paper_gamma_tables.csv"
MODELS = ("lenet", "resnet56", "vgg11")
PATCHES = ("all", "random")
SAMPLES = 512
SPOTS = ("layer1.0.conv1", "layer2.0.conv1", "layer3.8.conv1")


@dataclass
class Gram:
    """BᵀB of one layer's input, in float64."""

    layer: nn.Module
    generator: torch.Generator | None
    rows: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def add(self, x: Tensor) -> None:
        for part in self.parts(x):
            self.total = part.T @ part if self.rows == 0 else self.total + part.T @ part
            self.rows += len(part)

    def parts(self, x: Tensor) -> Iterator[Tensor]:
        if isinstance(self.layer, nn.Linear):
            yield x.reshape(-1, x.shape[-1])
        else:
            conv = Convolution.of(self.layer)  # type: ignore[arg-type]
            if self.generator is not None:
                yield random_rows(x, None, conv, self.generator)[0]
            else:
                yield from (rows for rows, _, _ in conv_rows(x, conv))

    def float32_ratio(self) -> tuple[int, float]:
        """The rank by PyTorch's rule for float32, and the paper's number made of it."""
        values = torch.linalg.eigvalsh(self.total).clamp_min(0).sqrt()
        columns = len(values)
        threshold = max(self.rows, columns) * torch.finfo(torch.float32).eps * float(values[-1])
        rank = int((values > threshold).sum())
        return rank, 1.0 if rank == columns else rank / (2 * columns)


@contextmanager
def watched(model: nn.Module, grams: dict[str, Gram]) -> Iterator[None]:
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, gram=gram: gram.add(args[0])
        )
        for name, gram in grams.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def float32_ranks(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    readers: dict[str, str],
    patches: str,
    train: bool,
    seed: int,
) -> dict[str, tuple[int, float, int]]:
    """For each pruned layer, by its reader: rank, ratio, and rows."""
    model = copy.deepcopy(model).double().train(train)
    generator = torch.Generator().manual_seed(seed) if patches == "random" else None
    grams = {name: Gram(model.get_submodule(name), generator) for name in readers.values()}
    torch.manual_seed(seed)  # of dropout
    with torch.no_grad(), watched(model, grams):
        for x, _ in data:
            model(x.double())
    return {
        layer: (*grams[reader].float32_ratio(), grams[reader].rows)
        for layer, reader in readers.items()
    }


def spot_check(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], readers: dict[str, str]
) -> list[dict[str, Any]]:
    """PyTorch's own float32 rank beside the rule, for one layer of each stage."""
    found = []
    for layer in SPOTS:
        reader = model.get_submodule(readers[layer])
        seen: list[Tensor] = []
        gram = Gram(reader, None)
        handle = reader.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        with torch.no_grad():
            for x, _ in data:
                model(x)
        handle.remove()
        rows = torch.cat([part for x in seen for part in gram.parts(x)])
        for x in seen:
            gram.add(x.double())
        direct = int(torch.linalg.matrix_rank(rows))
        found.append(
            {"layer": layer, "rows": gram.rows, "direct": direct, "rule": gram.float32_ratio()[0]}
        )
    return found


def read_paper(path: Path = PAPER) -> dict[tuple[str, str, str], float]:
    with path.open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {(r["model"], r["patches"], r["layer"]): float(r["ratio"]) for r in rows}


def network(name: str, models_dir: Path) -> nn.Module:
    if name == "lenet":
        return shipped_lenet()[0].eval()
    model = build(name)
    load_weights(model, models_dir / f"{name}-cifar10.safetensors")
    return model.eval()


def readers_of(model: nn.Module, example: Tensor) -> dict[str, str]:
    """The layer that reads each prunable layer."""
    return {g.name: g.consumers[0].name for g in find_groups(model, example) if g.inner}


def tables(
    name: str, model: nn.Module, images: Images, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ranks.csv and of bounds.csv for one network."""
    plain = calibration_batches(images, SAMPLES, seed)
    change = None if name == "lenet" else augment
    augmented = calibration_batches(images, SAMPLES, seed, augment=change)
    readers = readers_of(model, plain[0][0])
    paper, ranks, found = read_paper(), [], []
    for patches in PATCHES:
        ours = guarantees(model, plain, keep=(0.25, 0.5), patches=patches, ridge=0, seed=seed)
        rule = float32_ranks(model, plain, readers, patches, False, seed)
        theirs = float32_ranks(model, augmented, readers, patches, True, seed)
        for g in ours.groups:
            printed = paper.get((name, patches, g.name))
            way = theirs[g.name][1]
            ranks.append(
                {
                    "model": name,
                    "patches": patches,
                    "layer": g.name,
                    "units": g.units,
                    "zero_units": g.zero_units,
                    "rows": rule[g.name][2],
                    "columns": g.columns,
                    "rank": g.rank,
                    "exact": round(g.possible, 4),
                    "float32_rank": rule[g.name][0],
                    "float32_rule": round(rule[g.name][1], 4),
                    "papers_way_rank": theirs[g.name][0],
                    "papers_way": round(way, 4),
                    "paper": printed,
                    "difference": None if printed is None else round(way - printed, 4),
                }
            )
        found += bound_rows(name, ours)
    return ranks, found


def bound_rows(name: str, ours: Guarantees) -> list[dict[str, Any]]:
    return [
        {
            "model": name,
            "patches": ours.patches,
            "layer": g.name,
            "units": g.units,
            "k_possible": g.k_possible,
            "k_certified": g.k_certified,
            "gamma_global": g.gamma_global,
            "gamma": g.gamma,
            "gamma_seen": g.gamma_seen,
            "alpha": g.alpha,
            "curvature": g.curvature,
            "k": b.k,
            "gamma_k": b.gamma,
            "error": b.error,
            "error_bound": b.bound,
            "error_bound_sharper": b.tight,
        }
        for g in ours.groups
        for b in g.budgets
    ]


def markdown(ranks: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    proven = {(r["model"], r["patches"], r["layer"]): r for r in found}
    lines = []
    for model, patches in dict.fromkeys((r["model"], r["patches"]) for r in ranks):
        lines += [f"## {model}, {patches} patches", ""]
        lines += [
            "| layer | units (zero) | rows × columns | rank | exact | float32 rule | paper's way | paper | "
            "difference | k proven | λmin/λmax | γ ≥ | γ ≤ |",
            "|---" * 13 + "|",
        ]
        for r in ranks:
            if (r["model"], r["patches"]) != (model, patches):
                continue
            b = proven[model, patches, r["layer"]]
            paper = (
                ("–", "–")
                if r["paper"] is None
                else (f"{r['paper']:.2f}", f"{r['difference']:+.2f}")
            )
            cells = [
                r["layer"],
                f"{r['units']} ({r['zero_units']})",
                f"{r['rows']} × {r['columns']}",
                str(r["rank"]),
                *(f"{r[key]:.2f}" for key in ("exact", "float32_rule", "papers_way")),
                *paper,
                str(b["k_certified"]),
                *(f"{b[key]:.1e}" for key in ("gamma_global", "gamma")),
                f"{b['gamma_seen']:.2f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if "model name" in line
        ]
        model = f"{len(names)} cores of {names[0]}" if names else model
    version = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} thread(s), {model}, {version}"


def other_rows(path: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of an earlier run, of networks that are not run now."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] not in models]
    return [{key: number(value) for key, value in row.items()} for row in rows]


def number(text: str) -> str | float | int | None:
    """A CSV field as what it was; empty fields are None."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: MODELS.index(row["model"]))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()}
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="folder with the full MNIST and CIFAR-10"
    )
    parser.add_argument(
        "--models-dir", type=Path, required=True, help="folder with the CIFAR-10 networks"
    )
    parser.add_argument("--output", type=Path, default=Path("experiments/results/guarantees"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--spot-check", action="store_true", help="only check the float32 rule against PyTorch"
    )
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.spot_check:
        model = network("resnet56", options.models_dir)
        data = calibration_batches(
            load("cifar10", "train", options.data_dir), SAMPLES, options.seed
        )
        write_csv(
            options.output / "spot_check.csv",
            spot_check(model, data, readers_of(model, data[0][0])),
        )
        return
    ranks = other_rows(options.output / "ranks.csv", options.models)
    found = other_rows(options.output / "bounds.csv", options.models)
    for name in options.models:
        images = load("mnist" if name == "lenet" else "cifar10", "train", options.data_dir)
        own_ranks, own_found = tables(name, network(name, options.models_dir), images, options.seed)
        ranks, found = in_order(ranks + own_ranks), in_order(found + own_found)
        write_csv(options.output / "ranks.csv", ranks)
        write_csv(options.output / "bounds.csv", found)
        sys.stderr.write(f"{name} done\n")
    command = f"python experiments/guarantee_tables.py --data-dir DATA --models-dir MODELS --seed {options.seed}"
    head = f"# Guarantees beside the paper's tables\n\nMade by `{command}`, {SAMPLES} training images; {machine()}.\n\n"
    (options.output / "table.md").write_text(head + markdown(ranks, found))


if __name__ == "__main__":
    main()
