"""Who enters the arena: each takes the same model, images and goal, and returns a smaller model.

What is a preset of subprune's four parts is a row of `PRESETS`. Torch-Pruning runs from its own
package. Feature mimicking, which trains, is written out here.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from material import Material
from torch import Tensor, nn

import subprune
from subprune.data.batches import batches
from subprune.measure.measurements import count_flops, count_parameters
from subprune.select.input_change import Greedy
from subprune.statistics.batchnorm import recalibrate

__all__ = ["ENTRANTS", "Entrant", "Goal", "Outcome"]


@dataclass(frozen=True)
class Goal:
    """Parameters or FLOPs, before over after."""

    what: str  # "compression" or "speedup"
    factor: float

    @classmethod
    def of(cls, text: str) -> Goal:
        what, _, factor = text.partition("=")
        if what not in ("compression", "speedup") or not float(factor) > 1:
            raise SystemExit(f"goal {text!r} is not known; say compression=2 or speedup=2")
        return cls(what, float(factor))

    def met(self, dense: nn.Module, small: nn.Module, example: Tensor) -> bool:
        return self.factor * self.cost(small, example) <= self.cost(dense, example)

    def cost(self, model: nn.Module, example: Tensor) -> int:
        if self.what == "compression":
            return count_parameters(model)
        return count_flops(model, ((example,), {}))

    def __str__(self) -> str:
        return f"{self.what}={self.factor:g}"


@dataclass
class Outcome:
    """The smaller model, what it took, and what the rival chose by itself."""

    model: nn.Module
    note: str = ""
    # Seconds of the work itself, by both clocks, where searching for the goal is not part of it.
    spent: tuple[float, float] | None = None
    more: dict[str, Any] = field(default_factory=dict)


Entrant = Callable[[nn.Module, Material, Goal, int, Mapping[str, Any]], Outcome]


# ---- subprune ------------------------------------------------------------------------------------


def preset(labelled: bool = False, **options: Any) -> Entrant:
    """subprune with these options, on all groups that it prunes by default."""

    def enter(
        model: nn.Module, material: Material, goal: Goal, seed: int, limits: Mapping[str, Any]
    ) -> Outcome:
        result = _pruned(model, material, goal, seed, options, labelled)
        return Outcome(result.model, "; ".join(str(n) for n in result.report.notes))

    return enter


def recovered(**options: Any) -> Entrant:
    """The same, then label-free training for the minutes that the file allows."""

    def enter(
        model: nn.Module, material: Material, goal: Goal, seed: int, limits: Mapping[str, Any]
    ) -> Outcome:
        result = _pruned(model, material, goal, seed, options)
        minutes = float(limits["minutes"])
        images = material.calibration.inputs()
        how = {"clock": "processor", "seed": seed, "progress": False}
        result = subprune.recover(result, images, minutes=minutes, **how)
        return Outcome(result.model, f"{minutes:g} min: {result.recovery}")

    return enter


def _pruned(
    model: nn.Module,
    material: Material,
    goal: Goal,
    seed: int,
    options: Mapping[str, Any],
    labelled: bool = False,
) -> subprune.Result:
    data = material.calibration
    inputs = (data.inputs(), data.labels) if labelled else data.inputs()
    asked = {goal.what: goal.factor}
    how = {"n_samples": None, "seed": seed, "progress": False, "time_calls": False}
    return subprune.prune(model, inputs, **asked, **how, **options)


# ---- Torch-Pruning -------------------------------------------------------------------------------


def torch_pruning(importance: str, renew: bool) -> Entrant:
    """One importance of Torch-Pruning 1.6, global or in equal shares, streams cut or left whole:
    whichever agrees most with the dense model on images that neither calibrate nor test.

    The ratio that meets the goal, and the setting, are found before the clock starts.
    """

    def enter(
        model: nn.Module, material: Material, goal: Goal, seed: int, limits: Mapping[str, Any]
    ) -> Outcome:
        answers = _answers(model, material.tuning.inputs())
        begun = time.perf_counter(), time.process_time()
        ready = _with_gradients(model, material) if "Taylor" in importance else model
        looked = time.perf_counter() - begun[0], time.process_time() - begun[1]
        found: list[tuple[float, Outcome]] = []
        broken: list[str] = []  # settings that leave a model that does not run
        for everywhere, streams in itertools.product((True, False), (True, False)):
            cut = _Cut(ready, material, importance, everywhere, streams)
            try:
                ratio = _ratio(cut, model, goal)
            except _DoesNotRun:
                broken.append(str(cut))
                continue
            if ratio is None:
                continue
            started = time.perf_counter(), time.process_time()
            small = cut(ratio)
            if renew:
                _renew(small, material)
            spent = (
                time.perf_counter() - started[0] + looked[0],
                time.process_time() - started[1] + looked[1],
            )
            same = _answers(small, material.tuning.inputs()) == answers
            agreement = float(same.float().mean())
            found.append((agreement, Outcome(small, f"{cut}, ratio {ratio:.3f}", spent)))
        if not found:
            raise SystemExit(f"Torch-Pruning with {importance} does not reach {goal}")
        best = max(found, key=lambda pair: pair[0])[1]
        failed = "".join(f"; {setting}: the model does not run" for setting in broken)
        return replace(best, note=best.note + failed)

    return enter


@dataclass(frozen=True)
class _Cut:
    """A copy of the model, pruned by Torch-Pruning at a ratio of channels."""

    model: nn.Module
    material: Material
    importance: str
    everywhere: bool  # all channels are ranked together
    streams: bool  # channels that residual sums tie together go too

    def __call__(self, ratio: float) -> nn.Module:
        import torch_pruning as tp

        small = copy.deepcopy(self.model).eval()
        for own, given in zip(small.parameters(), self.model.parameters(), strict=True):
            own.grad = None if given.grad is None else given.grad.clone()  # not copied with it
        example = self.material.calibration.inputs(slice(0, 1))
        inside = None if self.streams else _inside(self.model, self.material)
        last = [m for m in small.modules() if isinstance(m, nn.Linear)][-1]
        ignored = [
            m
            for name, m in small.named_modules()
            if isinstance(m, nn.Conv2d | nn.Linear)
            and (m is last or (inside is not None and name not in inside))
        ]
        pruner = tp.pruner.BasePruner(
            small,
            example,
            getattr(tp.importance, self.importance)(),
            global_pruning=self.everywhere,
            pruning_ratio=ratio,
            max_pruning_ratio=0.9,  # global ranking can take all of a layer
            ignored_layers=ignored,
        )
        pruner.step()
        small.zero_grad(set_to_none=True)
        return small

    def __str__(self) -> str:
        ranked = "global ranking" if self.everywhere else "equal shares"
        return f"{ranked}, residual streams {'cut too' if self.streams else 'whole'}"


def _with_gradients(model: nn.Module, material: Material) -> nn.Module:
    """A copy, with gradients of the loss on the calibration images and their labels."""
    copied = copy.deepcopy(model).requires_grad_()
    for x, y in material.calibration.batches(32):
        F.cross_entropy(copied(x), y, reduction="sum").backward()
    return copied


def _inside(model: nn.Module, material: Material) -> set[str]:
    """Layers whose channels subprune would cut by default: those that no residual sum ties."""
    found = subprune.find_groups(model, material.calibration.inputs(slice(0, 2)))
    inner = [g for g in found.groups if g.inner]
    return {name for g in inner for name in (*g.producers, *g.followers)}


def _ratio(cut: _Cut, model: nn.Module, goal: Goal) -> float | None:
    """The smallest ratio that meets the goal, by bisection; None if none does."""
    example = cut.material.calibration.inputs(slice(0, 1))
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        small = cut(middle)
        _check_runs(small, example)
        met = goal.met(model, small, example)
        low, high = (low, middle) if met else (middle, high)
    return None if high == 1 else high


class _DoesNotRun(Exception):
    """A model whose layers no longer fit each other."""


def _check_runs(model: nn.Module, example: Tensor) -> None:
    try:
        with torch.no_grad():
            model(example)
    except RuntimeError as error:  # shapes that do not fit
        raise _DoesNotRun from error


def _renew(model: nn.Module, material: Material) -> None:
    """BatchNorm statistics re-estimated on the calibration images."""
    recalibrate(model, batches(material.calibration.inputs(), model, None))


def _answers(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(x).argmax(1) for x in inputs.split(50)])


# ---- feature mimicking ---------------------------------------------------------------------------


def mimicking(rate: float = 0.02) -> Entrant:
    """In the manner of MiR (Wang et al. 2022, "Compressing Models with Few Samples: Mimicking then
    Replacing"): filters of small norm go, what is left learns to give the features that the dense
    model's last layer reads, and that layer stays as it is.

    The file's minutes, of the processor, are those of `recover`; SGD with momentum and a rate that falls to zero as a
    cosine, BatchNorm in training mode, images mirrored at random and moved by up to an eighth.
    """

    def enter(
        model: nn.Module, material: Material, goal: Goal, seed: int, limits: Mapping[str, Any]
    ) -> Outcome:
        start = torch_pruning("MagnitudeImportance", True)(model, material, goal, seed, limits)
        begun = time.perf_counter(), time.process_time()
        steps = _mimic(model, start.model, material, rate, float(limits["minutes"]), seed)
        assert start.spent is not None
        spent = (
            time.perf_counter() - begun[0] + start.spent[0],
            time.process_time() - begun[1] + start.spent[1],
        )
        note = f"{limits['minutes']:g} min, {steps} steps from {start.note}"
        return Outcome(start.model, note, spent)

    return enter


def _mimic(
    dense: nn.Module,
    small: nn.Module,
    material: Material,
    rate: float,
    minutes: float,
    seed: int,
    most: int | None = None,
) -> int:
    """Train `small`, whose last layer is the dense model's, in place; the number of steps, which
    the minutes decide unless `most` says.
    """
    generator = torch.Generator().manual_seed(seed)
    images = material.calibration.inputs()
    trained = [p for n, p in small.named_parameters() if not n.startswith(_last(small)[0])]
    optimiser = torch.optim.SGD(trained, rate, momentum=0.9, weight_decay=1e-4)
    begun, steps = time.process_time(), 0
    small.train()
    while True:
        for rows in torch.randperm(len(images), generator=generator).split(64):
            by_time = (time.process_time() - begun) / (60 * minutes)
            share = by_time if most is None else steps / most
            if share >= 1:
                small.eval()
                return steps
            for group in optimiser.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share)) * min(1, (steps + 1) / 5)
            _mimic_step(dense, small, _moved(images[rows], generator), optimiser, trained)
            steps += 1


def _mimic_step(
    dense: nn.Module,
    small: nn.Module,
    x: Tensor,
    optimiser: torch.optim.Optimizer,
    trained: Sequence[nn.Parameter],
) -> None:
    with torch.no_grad():
        wanted = _features(dense, x)
    loss = F.mse_loss(_features(small, x), wanted)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 5.0)
    optimiser.step()


def _last(model: nn.Module) -> tuple[str, nn.Linear]:
    """The layer that gives the answers."""
    return [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]


def _features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last layer reads."""
    seen: list[Tensor] = []
    hook = _last(model)[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        model(x)
    finally:
        hook.remove()
    return seen[0]


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored or not, and moved by up to an eighth: the same for all images of the batch."""
    most = x.shape[-1] // 8
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=generator).tolist()
    size = x.shape[-1]
    x = F.pad(x, (most,) * 4, mode="reflect")[..., down : down + size, right : right + size]
    return x.flip(-1) if int(torch.randint(2, (1,), generator=generator)) else x


# ---- the list ------------------------------------------------------------------------------------

PRESETS: dict[str, Entrant] = {
    "subprune": preset(),
    "subprune, BatchNorm re-estimated": preset(batchnorm="sequential"),
    "subprune, refined": preset(refine=4),
    "subprune, correlations shrunk": preset(selector=Greedy(shrink=True)),
    "subprune, recovered": recovered(),
    "paper's method": preset(method="asym-in-change", ridge=0, allocate="knapsack"),
    "paper's method, BatchNorm re-estimated": preset(
        method="asym-in-change", ridge=0, allocate="knapsack", batchnorm="sequential"
    ),
    "magnitude": preset(
        method="layer-weight-norm", fit="keep", allocate="uniform", batchnorm="recalibrate"
    ),
    "random": preset(
        method="layer-random", fit="keep", allocate="uniform", batchnorm="recalibrate"
    ),
    # Chosen by size, then every reader of what is left is fitted by a ridge regression to what it
    # gave (Tang et al. 2026, arXiv 2602.23795).
    "GRAIL-style ridge": preset(
        method="layer-weight-norm", allocate="uniform", batchnorm="sequential"
    ),
    # Their criteria with our fit in place of fine-tuning.
    "ThiNet": preset(method="thinet", batchnorm="sequential"),
    "CHIP": preset(method="chip", batchnorm="sequential"),
    # The sum over a unit's outgoing weights of weight × gradient is its activation × gradient, which
    # is how LLM-Pruner (Ma et al. 2023, arXiv 2305.11627) ranks; here |·| is taken input by input.
    "Taylor of weights": preset(
        labelled=True,
        method="layer-act-grad",
        fit="keep",
        allocate="uniform",
        batchnorm="recalibrate",
    ),
    "backward elimination": preset(
        method="asym-in-change", selector="backward", batchnorm="sequential"
    ),
    "Wanda-sp": preset(method="wanda-sp", batchnorm="recalibrate"),
    "FLAP": preset(method="flap", batchnorm="recalibrate"),
}

IMPORTANCES = {
    "magnitude": "MagnitudeImportance",
    "BN scale": "BNScaleImportance",
    "Taylor": "GroupTaylorImportance",
}

PACKAGES: dict[str, Entrant] = {
    f"Torch-Pruning, {name}{words}": torch_pruning(importance, renew)
    for name, importance in IMPORTANCES.items()
    for words, renew in (("", False), (", BatchNorm re-estimated", True))
}

ENTRANTS: dict[str, Entrant] = {**PRESETS, **PACKAGES, "MiR-style mimicking": mimicking()}
