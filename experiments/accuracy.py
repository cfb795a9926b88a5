"""ResNet56 on CIFAR-10, 512 unlabelled training images, no fine-tuning: the default and its parts.

    python experiments/accuracy.py table|ablation|images --data-dir DATA --weights WEIGHTS
        [--network resnet56] [--seeds 42 43] [--ratios 2 4] [--variants default refine]
        [--products bfloat16]

table: every variant on the 10,000 test images, each measured once; nothing is chosen on them.
ablation: every part off in turn, and alone, on 10,000 training images that nothing saw.
images: the number of calibration images, on the same 10,000.
Other networks: vgg11, and lenet on MNIST, whose weights are shipped. Rows go to
experiments/results/accuracy/; a row that is there already is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from csv_rows import add_row, read_rows
from torch import Tensor, nn

import subprune
from subprune.budget.felt import Felt
from subprune.distil.training import Match
from subprune.statistics.residual import Residual
from subprune.zoo.datasets import Images, load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights

FOLDER = Path(__file__).parent / "results" / "accuracy"
COUNT = 512  # calibration images
UNSEEN = slice(10_000, 20_000)  # of the training images in the order of the seed

Variant = Callable[[nn.Module, Tensor, float, int], subprune.Result]


def prune(model: nn.Module, images: Tensor, ratio: float, seed: int, **more: Any) -> Any:
    return subprune.prune(
        model,
        images,
        compression=ratio,
        seed=seed,
        n_samples=None,
        time_calls=False,
        progress=False,
        **more,
    )


class Recovered:
    """Refined, then trained for what is left of the minutes, counted as CPU time; of both, the last
    refined is kept, so that a table with both rows refines once.
    """

    last: tuple[Any, subprune.Result, float] | None = None
    before = 0.0  # CPU seconds spent when an earlier row was made
    products: Literal["float32", "bfloat16"] = "float32"  # of the training

    def __init__(
        self,
        minutes: float = 0,
        match: Match | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> None:
        self.minutes, self.match, self.steps = minutes, match, steps
        self.options = {"refine": 4, "augment": "mirror", **options}

    def __call__(
        self, model: nn.Module, images: Tensor, ratio: float, seed: int
    ) -> subprune.Result:
        key = (ratio, seed, tuple(self.options.items()))
        if Recovered.last is None or Recovered.last[0] != key:
            started = time.process_time()
            result = prune(model, images[:COUNT], ratio, seed, **self.options)
            Recovered.last, self.before = (key, result, time.process_time() - started), 0.0
        else:
            self.before = Recovered.last[2]
        _, result, seconds = Recovered.last
        if not self.minutes:
            return result
        return subprune.recover(
            result,
            images,
            minutes=self.minutes - seconds / 60,
            clock="processor",
            products=self.products,
            match=self.match,
            steps=self.steps,
            seed=seed,
            progress=False,
        )


def variant(**options: Any) -> Variant:
    return lambda model, images, ratio, seed: prune(model, images, ratio, seed, **options)


def unpruned(model: nn.Module, images: Tensor, ratio: float, seed: int) -> Any:
    return SimpleNamespace(model=model, report=SimpleNamespace(agreement=1.0))


FELT = {"allocate": Felt(share=1.0)}  # budgets by felt errors alone
TABLE: dict[str, Variant] = {
    "dense": unpruned,
    "paper's method (asym-in-change)": variant(method="asym-in-change"),
    "default": variant(),
    "budgets by felt errors alone": variant(**FELT),
    "the same, refine": variant(**FELT, refine=4),
    "the same, refine, mirror images": variant(**FELT, refine=4, augment="mirror"),
    "refine": variant(refine=4),
    "refine, mirror images": Recovered(),
    "refine, mirror images, recover": Recovered(minutes=10),
    "the same, 4,096 images, 30 minutes": Recovered(minutes=30),
}
MORE = {"the same, 4,096 images, 30 minutes": 4096}  # where it is not 512 images

PLAIN = {"method": "asym-in-change"}
ABLATION: dict[str, Variant] = {
    "default": variant(),
    "budgets by felt errors alone": variant(**FELT),
    "without: moving targets": variant(**FELT, target=Residual(rounds=0)),
    "without: metric in fits": variant(**FELT, target=Residual(metric=False)),
    "without: residual target": variant(**FELT, target="asymmetric"),
    "without: drift refit": variant(**FELT, drift=False),
    "without: constant": variant(**FELT, fit="ridge"),
    "budgets by relative errors alone": variant(allocate="balanced"),
    "equal fractions": variant(allocate="uniform"),
    "backward elimination": variant(**FELT, selector="backward"),
    "exchanges of units": variant(selector="swap"),
    "with: mirror images": variant(**FELT, augment="mirror"),
    "with: mirror images and crops": variant(**FELT, augment=["mirror", "crop"]),
    "with: refine": variant(**FELT, refine=4),
    "with: refine, mirror images": variant(**FELT, refine=4, augment="mirror"),
    "the default, refine, mirror images": Recovered(),
    "the same, recover, 150 steps": Recovered(60, steps=150),
    "the same, recover, 150 steps, by probabilities": Recovered(60, "probabilities", steps=150),
    "none of them": variant(**PLAIN),
    "alone: drift refit": variant(**PLAIN, drift=True),
    "alone: residual target": variant(**PLAIN, target=Residual(rounds=0, metric=False)),
    "alone: constant": variant(**PLAIN, fit="affine"),
    "alone: budgets by felt errors": variant(**PLAIN, **FELT),
}

COUNTS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BY_IMAGES: dict[str, Variant] = {
    "default": variant(),
    "budgets by felt errors alone": variant(**FELT),
    "asym-in-change": variant(method="asym-in-change"),
    "layer-weight-norm": variant(method="layer-weight-norm"),
}


def network(name: str, weights: Path | None) -> tuple[nn.Module, str]:
    """A trained network, and the name of its images."""
    if name == "lenet":
        return shipped_lenet()[0], "mnist"
    if weights is None:
        raise SystemExit(f"--weights: the file with the weights of {name}")
    model = build(name).eval()
    load_weights(model, weights)
    return model, "cifar10"


@torch.no_grad()
def top1(model: nn.Module, images: Images) -> float:
    every = images.inputs()
    answers = torch.cat([model(part).argmax(1) for part in every.split(500)])
    return round(100 * float((answers == images.labels).double().mean()), 2)


def jobs(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Variant, int]]:
    """What makes a row unique, how it is made, and from how many images."""
    table = {"table": TABLE, "ablation": ABLATION, "images": BY_IMAGES}[options.part]
    chosen = [name for name in table if not options.variants or name in options.variants]
    for seed, ratio, name in itertools.product(options.seeds, options.ratios, chosen):
        make = table[name]
        if make is unpruned:
            ratio = 1.0
        counts = options.images if options.part == "images" else [MORE.get(name, COUNT)]
        for count in counts:
            key = {"variant": name, "compression": ratio, "seed": seed, "images": count}
            yield key, make, count


def unique(row: dict[str, Any]) -> tuple[str, float, int, int]:
    """What no two rows of a table share."""
    numbers = float(row["compression"]), int(row["seed"]), int(row["images"])
    return row["variant"], *numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", choices=["table", "ablation", "images"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--network", default="resnet56", choices=["resnet56", "vgg11", "lenet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--ratios", type=float, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--images", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--variants", nargs="+")
    parser.add_argument(
        "--products",
        default="float32",
        choices=["float32", "bfloat16"],
        help="of recover: bfloat16 is twice as fast where the processor has it, and slower elsewhere",
    )
    options = parser.parse_args()
    Recovered.products = options.products
    model, images = network(options.network, options.weights)
    train = load(images, "train", options.data_dir)
    mark = "" if options.network == "resnet56" else f"-{options.network}"
    path = FOLDER / f"{options.part}{mark}.csv"
    known = {unique(row) for row in read_rows(path)}
    for key, make, count in jobs(options):
        if unique(key) in known:
            continue
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(key["seed"]))
        judged = train.subset(order[UNSEEN])
        if options.part == "table":
            judged = load(images, "test", options.data_dir)
        started = time.process_time()
        result = make(model, train.inputs(order[:count]), key["compression"], key["seed"])
        row = {
            **key,
            "top1": top1(result.model, judged),
            "agreement_reported": round(100 * (result.report.agreement or 0), 2),
            "cpu_seconds": round(time.process_time() - started + getattr(make, "before", 0), 1),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
            f"torch {torch.__version__}",
        }
        print(row, flush=True)
        add_row(path, row)
        known.add(unique(key))


if __name__ == "__main__":
    main()
