"""Real transformers with a share of their block parameters removed, beside simpler methods.

    python experiments/transformers_table.py TEXT --language SMOLLM2 --sentences MINILM
        [--removed 0.1 0.2] [--variants default flap] [--seeds 0]

TEXT is WikiText-2's raw test file, the others are folders that transformers can load (a folder with
a .gguf file is dequantised, and so is what "dense" means).

Language model: calibrated on 64 × 256 tokens drawn from the first 180,000; perplexity on 8 × 1,024
of the tokens after those, context and stride 1,024. Sentence embeddings (mean over tokens, length
1): calibrated on 256 sentences drawn from the first three fifths of the text, mean cosine with the
dense model on 512 of the rest. "All text" is what calibration data is drawn from. Rows go to
experiments/results/transformers/; a row that is there already is not made again.
"""

from __future__ import annotations

import argparse
import copy
import csv
import ctypes
import gc
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subprune
from subprune.budget.felt import Felt

RESULTS = Path(__file__).parent / "results" / "transformers"
SPLIT = 180_000  # tokens before it calibrate, tokens from it on test
KEY = ("model", "layers", "variant", "removed", "seed", "inputs", "length")
BIASED = ("o_proj", "down_proj")

Data = list[dict[str, Tensor]]
Variant = Callable[["Part", Data, float, int], subprune.Result]


# ---- what is compared ----------------------------------------------------------------------------


def prune(model: nn.Module, data: Data, removed: float, seed: int, **more: Any) -> subprune.Result:
    """Prune a share of the parameters in the model's blocks."""
    size = sum(p.numel() for p in model.parameters())
    return subprune.prune(
        model,
        data,
        params=float(size - removed * block_parameters(model)),
        n_samples=None,
        seed=seed,
        time_calls=False,
        **more,
    )


def variant(**options: Any) -> Variant:
    return lambda part, data, removed, seed: prune(part.model, data, removed, seed, **options)


class Once:
    """Pruned; the last result is kept, so that what goes on from it does not prune again."""

    before = 0.0  # CPU seconds that were spent when an earlier row was made

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.last: tuple[Any, subprune.Result, float] | None = None

    def __call__(self, part: Part, data: Data, removed: float, seed: int) -> subprune.Result:
        key = (part.name, removed, seed)
        if self.last is not None and self.last[0] == key:
            self.before = self.last[2]
            return self.last[1]
        started, self.before = time.process_time(), 0.0
        result = prune(part.model, data, removed, seed, **self.options)
        self.last = key, result, time.process_time() - started
        return result


class Trained:
    """Pruned, then trained for so many minutes of processor time: on the calibration data, or on
    all of the text that it was drawn from.
    """

    def __init__(self, pruned: Once, minutes: float, every: bool = False, **options: Any) -> None:
        self.pruned, self.minutes, self.every, self.options = pruned, minutes, every, options

    @property
    def before(self) -> float:
        return self.pruned.before

    def __call__(self, part: Part, data: Data, removed: float, seed: int) -> subprune.Result:
        result = self.pruned(part, data, removed, seed)
        how: dict[str, Any] = {"minutes": self.minutes, "clock": "processor", **self.options}
        return subprune.recover(result, part.every() if self.every else data, seed=seed, **how)


def compensated(part: Part, data: Data, removed: float, seed: int) -> subprune.Result:
    """FLAP adds biases to layers that have none: here they are there before, and zero."""
    model = copy.deepcopy(part.model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.bias is None and name.endswith(BIASED):
            module.bias = nn.Parameter(module.weight.new_zeros(module.out_features))
    return prune(model, data, removed, seed, method="flap")


DEFAULT, REFINED = Once(), Once(refine=4)
VARIANTS: dict[str, Variant] = {
    "default": DEFAULT,
    "recover on all text": Trained(DEFAULT, minutes=15, every=True, products="bfloat16"),
    "felt errors alone": variant(allocate=Felt(share=1.0)),
    "refine": REFINED,
    "refine, recover": Trained(REFINED, minutes=15),
    "paper's method": variant(method="asym-in-change"),
    "magnitude": variant(method="layer-weight-norm", fit="keep", allocate="uniform"),
    "wanda-sp": variant(method="wanda-sp"),
    "flap": compensated,
    "random": variant(method="layer-random", fit="keep", allocate="uniform"),
}


def block_list(model: nn.Module) -> nn.ModuleList:
    """The list of blocks: the one with the most parameters."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def block_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in block_list(model).parameters())


# ---- models and texts ----------------------------------------------------------------------------


def load(folder: Path, kind: str, layers: int | None) -> tuple[nn.Module, Any]:
    """The model in float32, and its tokenizer; `layers`: only so many blocks, to try the script."""
    import transformers

    configs = sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))
    place = next(folder.rglob("*.gguf"), None) or configs[0]
    more = {"gguf_file": place.name} if place.suffix == ".gguf" else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(place.parent, **more)
    model = getattr(transformers, kind).from_pretrained(place.parent, dtype=torch.float32, **more)
    model.config.use_cache = False
    if layers is not None:
        del block_list(model)[layers:]
        model.config.num_hidden_layers = layers
    return model.eval(), tokenizer


class Sentences(nn.Module):
    """Embeddings of sentences: the mean over tokens that are no padding, of length 1."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[N, T] → [N, d]"""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        on = attention_mask[..., None].to(hidden)
        return F.normalize((hidden * on).sum(1) / on.sum(1), dim=-1)


def sentences(text: str) -> list[str]:
    """The first sentence of every paragraph, of some length; headings are left out."""
    lines = [line.strip() for line in text.splitlines()]
    first = [line.split(" . ")[0].rstrip(" .") + "." for line in lines if line]
    return [s for s in first if len(s.split()) >= 6 and not s.startswith("=")]


@dataclass(frozen=True)
class Part:
    """One half of the table: a model, what calibrates it, and what it is judged by."""

    name: str
    model: nn.Module
    removed: Sequence[float]
    inputs: int
    length: int
    calibration: Callable[[int], Data]  # by seed
    every: Callable[[], Data]  # everything that it is drawn from
    judge: Callable[[nn.Module], dict[str, Any]]


def language(options: argparse.Namespace) -> Part:
    model, tokenizer = load(options.language, "AutoModelForCausalLM", options.layers)
    ids = torch.tensor(tokenizer(options.text.read_text(), verbose=False)["input_ids"])
    split = min(SPLIT, len(ids) * 3 // 5)

    def calibration(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(0, split - options.length, (options.inputs,), generator=generator)
        rows = torch.stack([ids[s : s + options.length] for s in starts.tolist()])
        return [{"input_ids": part} for part in rows.split(8)]

    def every() -> Data:
        count = split // options.length
        rows = ids[: count * options.length].reshape(count, options.length)
        return [{"input_ids": part} for part in rows.split(8)]

    def measured(net: nn.Module) -> subprune.Evaluation:
        test = ids[split:]
        return subprune.evaluate(
            net, test, context=options.context, tokens=options.windows * options.context
        )

    dense = measured(model)
    print(f"dense\n{dense}", flush=True)

    def judge(net: nn.Module) -> dict[str, Any]:
        found = measured(net)
        assert found.perplexity is not None
        assert dense.perplexity is not None
        return {
            "dense": round(dense.perplexity, 3),
            "perplexity": round(found.perplexity, 3),
            "ratio": round(found.perplexity / dense.perplexity, 4),
            "protocol": f"from token {split:,} on: {found.protocol}",
        }

    removed = options.removed or (0.1, 0.2, 0.3)
    sizes = (removed, options.inputs, options.length)
    return Part("language", model, *sizes, calibration, every, judge)


def embeddings(options: argparse.Namespace) -> Part:
    encoder, tokenizer = load(options.sentences, "AutoModel", options.layers)
    model = Sentences(encoder).eval()
    text = sentences(options.text.read_text())
    split = len(text) * 3 // 5
    inputs, length = min(4 * options.inputs, split), 64

    def batches(chosen: list[str]) -> Data:
        how = {"padding": "max_length", "truncation": True, "max_length": length}
        found = tokenizer(chosen, return_tensors="pt", **how)
        names = ("input_ids", "attention_mask")
        return [{n: found[n][i : i + 32] for n in names} for i in range(0, len(chosen), 32)]

    def calibration(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(split, generator=generator)[:inputs].tolist()
        return batches([text[i] for i in drawn])

    test = batches(text[split:][: 64 * options.windows])

    def judge(net: nn.Module) -> dict[str, Any]:
        found = subprune.evaluate(net, test, dense=model)
        assert found.cosine is not None
        words = f"sentences {split:,} to {split + found.inputs:,}, up to {length} tokens"
        return {"cosine": round(found.cosine, 5), "protocol": words}

    removed = options.removed or (0.1, 0.25, 0.5)

    def every() -> Data:
        return batches(text[:split])

    return Part("sentences", model, removed, inputs, length, calibration, every, judge)


# ---- rows ----------------------------------------------------------------------------------------


def jobs(part: Part, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What makes a row unique."""
    folder: Path = getattr(options, part.name)
    for seed in options.seeds:
        for removed in part.removed:
            for name in options.variants or VARIANTS:
                values = (folder.name, len(block_list(part.model)), name, removed, seed)
                yield dict(zip(KEY, (*values, part.inputs, part.length), strict=True))


def made(part: Part, key: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    data, before = part.calibration(key["seed"]), _fresh_peak()
    started, worked = time.perf_counter(), time.process_time()
    make = VARIANTS[key["variant"]]
    result = make(part, data, key["removed"], key["seed"])
    seconds, peak = time.perf_counter() - started, _memory("VmHWM")
    worked = time.process_time() - worked + getattr(make, "before", 0.0)
    agreement = result.report.agreement
    least = min(result.plan.groups, key=lambda g: len(g.kept) / g.units)
    gone = 1 - block_parameters(result.model) / block_parameters(part.model)
    for note in result.report.notes:
        print("note:", note, flush=True)
    return {
        **key,
        **part.judge(result.model),
        "removed_measured": round(gone, 4),
        "agreement": "" if math.isnan(agreement) else round(agreement, 4),
        "narrowest": f"{least.name} {len(least.kept)}/{least.units}",
        "seconds": round(seconds, 1),
        "cpu_seconds": round(worked, 1),
        "peak_mb_beyond": round(peak - before) if peak else "",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
    }


def _memory(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at its peak; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return sum(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _fresh_peak() -> float:
    """Give back what earlier rows have left, and start the peak again: megabytes now."""
    gc.collect()
    if platform.system() == "Linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def table(part: Part, options: argparse.Namespace) -> None:
    """Make the rows that are not there yet."""
    path = options.results / f"{part.name}.csv"
    rows: list[dict[str, Any]] = []
    if path.is_file():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    known = {tuple(row[k] for k in KEY) for row in rows}
    for key in jobs(part, options):
        if tuple(str(x) for x in key.values()) in known:
            continue
        rows.append(made(part, key))
        print(rows[-1], flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--language", type=Path, help="folder of a causal language model")
    parser.add_argument("--sentences", type=Path, help="folder of a sentence encoder")
    parser.add_argument("--removed", type=float, nargs="+", help="shares of block parameters")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--inputs", type=int, default=64, help="sequences; sentences are 4 times")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--windows", type=int, default=8, help="of test tokens; 64 sentences each")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--layers", type=int, help="only so many blocks, to try the script")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(words)
    if options.language is not None:
        table(language(options), options)
    if options.sentences is not None:
        table(embeddings(options), options)


if __name__ == "__main__":
    main()
