"""Time and memory of the default recipe on a language model and on a network for large images.

    python benchmarks/large_models.py --language FOLDER --text FILE [--layers 3]
    python benchmarks/large_models.py --resnet50 [WEIGHTS] [--images 512]
    python benchmarks/large_models.py --llama7b BLOCKS [--inputs 8] [--length 128]

Language model: 64 sequences of 256 tokens of a text, a fifth of the parameters in the blocks
removed; FOLDER is one that transformers can load (a .gguf file in it is dequantised), the text
WikiText-2's raw test file. ResNet50: images of 224 × 224 random numbers, which take as long as
others, compressed by 1.5; without weights the network is a random one. LLaMA-7B: its shapes and some
of its 32 blocks, random weights and tokens, bfloat16, a fifth of the MLP's units removed, one strength
of the ridge and nothing held out; `--width` divides all widths, to see how memory grows with many
blocks. Its weights are written to safetensors first, and loaded from there by transformers, which
maps the files. New weights of a model above 1 GiB lie in files, with `--in-files` those of any.

Each row is made in a process of its own and added to benchmarks/results/large-models.csv: CPU
seconds and wall clock, seconds of the parts, and two peaks of memory beyond the model and its data:
of all that lay in memory, pages of files included, which the system may take back at any time, and
of what is in no file (anonymous memory), looked at thirty times a second, each time after the
allocator was told to give back what it only holds on to.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import subprune
from subprune.program import shelf

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "large-models.csv"
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]


def language(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Any], str]:
    """Model, inputs, goal, and what it is called."""
    from transformers_table import block_parameters, load

    model, tokenizer = load(options.language, "AutoModelForCausalLM", options.layers)
    ids = torch.tensor(tokenizer(options.text.read_text(), verbose=False)["input_ids"])
    generator = torch.Generator().manual_seed(0)
    last = min(180_000, len(ids) * 3 // 5) - options.length
    starts = torch.randint(0, last, (options.inputs,), generator=generator).tolist()
    rows = torch.stack([ids[s : s + options.length] for s in starts])
    size = sum(p.numel() for p in model.parameters())
    goal = {"params": float(size - 0.2 * block_parameters(model))}
    blocks = "" if options.layers is None else f", {options.layers} blocks"
    name = f"{options.language.name}{blocks}, {options.inputs} x {options.length} tokens"
    return model, [{"input_ids": part} for part in rows.split(8)], goal, name


def images(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Any], str]:
    """The same of ResNet50."""
    from few_inputs import ResNet50, resnet50

    torch.manual_seed(0)
    weights = options.resnet50
    model = ResNet50().eval() if weights == Path() else resnet50(weights)
    data = torch.randn(options.images, 3, 224, 224)
    name = f"ResNet50{' with random weights' if weights == Path() else ''}"
    return model, data, {"compression": 1.5}, f"{name}, {options.images} images of 224 x 224"


BLOCKS = 32  # of LLaMA-7B


def write_llama7b(options: argparse.Namespace, folder: Path) -> None:
    """A language model with the shapes of LLaMA-7B and random weights, in files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    part = options.width
    shapes = {"hidden_size": 4096 // part, "intermediate_size": 11008 // part}
    heads = {"num_attention_heads": 32 // part, "num_hidden_layers": options.llama7b}
    config = LlamaConfig(**shapes, **heads, vocab_size=32000 // part)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="2GB")


def llama7b(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Any], str]:
    """The same of what lies there."""
    from transformers import LlamaForCausalLM

    part, blocks = options.width, options.llama7b
    model = LlamaForCausalLM.from_pretrained(options.written, dtype=torch.bfloat16).eval()
    torch.manual_seed(0)
    rows = torch.randint(0, 32000 // part, (options.inputs, options.length))
    goal = {"keep": 0.8, "only": "*.mlp", "fit": "ridge", "ridge": 1e-2, "folds": 1, "drift": False}
    name = f"LLaMA-7B{'' if part == 1 else f' of 1/{part} the width'}, {blocks} of {BLOCKS} blocks"
    name += f", bfloat16, MLPs, {options.inputs} x {options.length} tokens"
    if options.selector is not None:
        kept = round(0.8 * (11008 // part))
        goal |= {"keep": None, "budgets": {f"model.layers.{i}.mlp": kept for i in range(blocks)}}
        goal["selector"] = options.selector
        name += f", units by {options.selector}"
    if shelf.is_large(model.parameters()):
        name += ", new weights in files"
    return model, [{"input_ids": part} for part in rows.split(1)], goal, name


@contextmanager
def anonymous() -> Iterator[list[float]]:
    """The peak of memory that is in no file, in megabytes, while something is at work."""
    from transformers_table import _memory

    peak, ended = [_memory("RssAnon")], threading.Event()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)

    def look() -> None:
        while not ended.wait(0.03):
            trim(0)
            peak[0] = max(peak[0], _memory("RssAnon"))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield peak
    finally:
        ended.set()
        looking.join()


def row(options: argparse.Namespace) -> dict[str, Any]:
    """One run, in this process."""
    from machine import describe
    from transformers_table import _fresh_peak, _memory

    if options.in_files:
        shelf.MODEL_BYTES = 0
    make = language if options.language is not None else images
    make = make if options.llama7b is None else llama7b
    model, data, goal, name = make(options)
    before, aside = _fresh_peak(), _memory("RssAnon")
    wall, cpu = time.perf_counter(), time.process_time()
    clock: list[float] = []
    with anonymous() as highest:
        result = subprune.prune(
            model,
            data,
            n_samples=None,
            threads=options.threads,
            time_calls=False,
            callback=lambda group: clock.append(time.process_time()),
            **goal,
        )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = _memory("VmHWM") - before
    print(result.report)
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in result.report.parts.items())
    return {
        "workload": name,
        "version": options.version,
        "cpu seconds": round(cpu, 1),
        "wall seconds": round(wall, 1),
        "peak MB beyond": round(peak),
        "of it in no file": round(highest[0] - aside),
        "model MB": round(sum(p.nbytes for p in model.parameters()) / 2**20),
        "cpu seconds from group to group": " ".join(
            f"{b - a:.0f}" for a, b in itertools.pairwise(clock)
        ),
        "threads": options.threads or torch.get_num_threads(),
        "parts, wall seconds": parts,
        "machine": f"{describe()['processor']}, {describe()['cores']} cores",
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--language", type=Path, help="folder of a causal language model")
    parser.add_argument("--text", type=Path, help="what it is calibrated on")
    parser.add_argument("--layers", type=int, help="only so many blocks")
    parser.add_argument("--inputs", type=int, default=64, help="sequences")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--resnet50", type=Path, nargs="?", const=Path(), help="its weights")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--llama7b", type=int, metavar="BLOCKS", help="of random weights")
    parser.add_argument("--width", type=int, default=1, help="what its widths are divided by")
    parser.add_argument("--selector", help="of the LLaMA-7B row: as many units of each MLP, by it")
    parser.add_argument("--in-files", action="store_true", help="new weights, of any model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--version", default=subprune.__version__, help="for the record")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--written", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if not options.here:  # a fresh process, so that the peak is this run's own
        given = sys.argv[1:] if words is None else list(words)
        with tempfile.TemporaryDirectory() as folder:
            if options.llama7b is not None:
                write_llama7b(options, Path(folder))
                given += ["--written", folder]
            subprocess.run([sys.executable, __file__, "--here", *given], check=True)
        return
    new = row(options)
    known = []
    if RESULTS.is_file():
        with RESULTS.open(newline="") as file:
            known = list(csv.DictReader(file))
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(new))
        writer.writeheader()
        writer.writerows([*known, new])


if __name__ == "__main__":
    main()
