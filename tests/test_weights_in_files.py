"""Large models: no second copy of their weights lies in memory, and nothing else changes."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import llama
from safetensors.torch import load_file, save_file
from test_large_models import MODELS, assert_same, pruned, words
from torch import Tensor, nn

import subprune
from subprune.cutting import surgery
from subprune.cutting.masking import mask
from subprune.loop import tour
from subprune.program import borrow, shelf
from subprune.program.borrow import borrowed


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every model counts as large; the tensors that went to files."""
    made: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        copy = shelf._mapped(x, shelf.mmap.ACCESS_COPY) if shelf._worth_it(x) else x
        made.extend([copy] if copy is not x else [])
        return copy

    monkeypatch.setattr(shelf, "MODEL_BYTES", 0)
    monkeypatch.setattr(shelf, "SMALL", 64)
    monkeypatch.setattr(borrow, "SMALL", 64)
    monkeypatch.setattr(shelf, "stored", noted)
    return made


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", [{}, {"folds": 1, "fit": "ridge"}, {"refine": 1}])
def test_weights_in_files_change_nothing(
    make: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, large: list[Tensor]
) -> None:
    there = pruned(make, **options)
    assert large
    monkeypatch.setattr(shelf, "MODEL_BYTES", 2**30)
    here = pruned(make, **options)
    assert there.plan.kept == here.plan.kept
    for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    if here.report.held_out is not None:
        assert_same(there, here)


def test_the_result_is_an_ordinary_model(large: list[Tensor], tmp_path: Path) -> None:
    result = pruned(words)
    before = {n: x.clone() for n, x in result.dense.state_dict().items()}  # type: ignore[union-attr]
    addresses = {x.data_ptr() for x in large}
    assert {x.data_ptr() for x in result.model.parameters() if x.nbytes >= 64} <= addresses
    large.clear()
    subprune.save(result, tmp_path / "small.safetensors")
    known = {n: x.clone() for n, x in result.model.state_dict().items()}
    file = io.BytesIO()
    torch.save(result.model.state_dict(), file)
    file.seek(0)
    for state in (torch.load(file), copy.deepcopy(result.model).state_dict()):
        assert all(torch.equal(x, known[n]) for n, x in state.items())
    with torch.no_grad():  # training writes into the weights, of this model alone
        for x in result.model.parameters():
            x.add_(1.0)
    assert all(torch.equal(x, known[n] + 1) for n, x in result.model.named_parameters())
    after = result.dense.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(x, before[n]) for n, x in after.items())
    # A second pruning runs what was written, and leaves it.
    again = subprune.prune(result.model, words()[1], keep=0.9, progress=False, time_calls=False)
    assert all(torch.equal(x, known[n] + 1) for n, x in result.model.named_parameters())
    assert again.report.parameters[1] < again.report.parameters[0]
    loaded = subprune.load(words()[0], tmp_path / "small.safetensors")
    assert all(torch.equal(x, known[n]) for n, x in loaded.state_dict().items())


class Writes(nn.Module):
    """Writes into its weights on the way, by name, through a view, and into another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 4)
        self.register_buffer("seen", torch.zeros(40))
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.weight.data.mul_(1.5)
            self.b.weight.view(-1)[:5] += 1.0
            torch.add(self.seen, 1.0, out=self.seen)
        if self.fails:
            raise KeyboardInterrupt
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_lent_model_writes_is_put_back(
    fails: bool, monkeypatch: pytest.MonkeyPatch, large: list[Tensor]
) -> None:
    torch.manual_seed(0)
    model, x = Writes().eval(), torch.randn(5, 6)
    model.fails = fails
    state = {n: v.clone() for n, v in model.state_dict().items()}
    versions = [v._version for v in model.parameters()]
    answers = []
    for most in (0, 2**30):  # lent, and copied
        monkeypatch.setattr(shelf, "MODEL_BYTES", most)
        for _ in range(2):
            try:
                with borrowed(model), torch.no_grad():
                    shared = model.a.weight.data_ptr()
                    answers.append(model(x))
            except KeyboardInterrupt:
                assert fails
            assert (shared == model.a.weight.data_ptr()) == (most == 0)
            assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())
    assert [v._version for v in model.parameters()] == versions
    assert len(answers) == (0 if fails else 4)
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_a_twin_keeps_no_tensors(large: list[Tensor]) -> None:
    """What is switched off is so when it is read; the same as when it was kept."""
    model, data = words()
    groups = subprune.find_groups(model, data[0])
    kept = {g.name: list(range(0, g.n_units, 2)) for g in groups.inner()}
    twin = mask(model, groups, kept)
    for name, x in twin.tensors.items():
        assert twin.tensors[name] is x or not torch.equal(x, model.get_parameter(name))
    whole = mask(model, groups, {})
    assert all(whole.tensors[n] is whole.tensors.tensors[n] for n in whole.tensors)  # type: ignore[attr-defined]


def test_only_what_is_cut_is_not_copied() -> None:
    """Of a cut model nothing is shared with the one that it was made from."""
    model, data = words()
    groups = subprune.find_groups(model, data[0])
    name = groups.inner()[0].name
    small = surgery.attempt(model, groups, {name: [0, 1]}, ((), dict(data[0]))).model
    mine = {x.untyped_storage().data_ptr() for x in model.parameters()}
    assert not mine & {x.untyped_storage().data_ptr() for x in small.parameters()}


def test_versions_go_on_sharing_what_they_share(large: list[Tensor]) -> None:
    held = object.__new__(tour.Tour)
    held._keep = shelf.stored
    old, new, both = torch.zeros(64), torch.ones(64), torch.full((64,), 2.0)
    run = type("Run", (), {"tensors": {"a": old, "b": old}})()
    held.current, held.versions = run, [{"a": old, "b": old}]
    held._hold([{"a": new, "b": both}, {"a": old, "b": both}])
    first, second = held.models
    assert first["b"] is second["b"] is not both
    assert second["a"] is old
    assert torch.equal(first["a"], new)


def test_files_are_mapped_and_left_as_they_are(tmp_path: Path, large: list[Tensor]) -> None:
    """Weights that a loader has mapped are read from their file, and never written."""
    model, data = words()
    path = tmp_path / "weights.safetensors"
    save_file({n: x.contiguous() for n, x in model.state_dict().items()}, path)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    mapped = llama().double().eval()
    mapped.load_state_dict(load_file(path), assign=True)
    options: dict[str, Any] = {"n_samples": None, "progress": False, "time_calls": False}
    one = subprune.prune(mapped, data, keep=0.6, **options)
    other = subprune.prune(model, data, keep=0.6, **options)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    del one, mapped
    gc.collect()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == content


PEAK = """
import json, sys, threading, torch, subprune
from pathlib import Path
from safetensors.torch import load_file
from subprune.program import borrow, shelf
sys.path.insert(0, {tests!r})
from test_weights_in_files import Table

shelf.MODEL_BYTES = {most}
torch.set_num_threads(1)
model = Table().eval()
model.load_state_dict(load_file({path!r}), assign=True)
data = torch.randint(0, 2**16, (64, 3), generator=torch.manual_seed(0))

def now():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) / 1024 for x in lines if x.startswith("RssAnon"))

def run(model):
    subprune.prune(model, data, keep=0.5, only="b", fit="ridge", folds=1, progress=False)

run(Table(width=8).eval())  # imports, caches
before, peak, ended = now(), [0.0], threading.Event()

def look():
    while not ended.wait(0.001):
        peak[0] = max(peak[0], now())

looking = threading.Thread(target=look)
looking.start()
run(model)
ended.set()
looking.join()
print(json.dumps(peak[0] - before))
"""


class Table(nn.Module):
    """A large table before small layers."""

    def __init__(self, rows: int = 2**16, width: int = 2**9) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.a, self.b, self.c = nn.Linear(width, 16), nn.Linear(16, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(self.table(x).mean(1))))))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Beside a table of 128 MB in a file, small layers are pruned."""
    path = tmp_path / "table.safetensors"
    save_file(dict(Table().state_dict()), path)
    peaks = []
    for most in (0, 2**30):
        code = PEAK.format(tests=str(Path(__file__).parent), path=str(path), most=most)
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stderr
        peaks.append(json.loads(ran.stdout.splitlines()[-1]))
    assert peaks[0] < 64 < 128 < peaks[1]
