"""One pruning shared by the ranks of a torch.distributed job: the same as by one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from landing_nets import Blocks, made
from language_models import llama
from rank_jobs import Ended, job
from run_cli import runner
from torch import nn

import subprune
from subprune.errors import OptionError
from subprune.program import ranks as module
from subprune.program.ranks import ALONE, _parcels
from subprune.statistics.calibration import _divided
from subprune.zoo.models import build

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


def images(rank: int = 0) -> tuple[nn.Module, Any]:
    data = torch.randn(48, 3, 10, 10, generator=torch.manual_seed(3), dtype=torch.float64)
    return made(Blocks), (data, torch.arange(48) % 4)


def single(rank: int = 0) -> tuple[nn.Module, Any]:
    model, (data, labels) = images()
    return model.float(), (data.float(), labels)


def words(rank: int = 0) -> tuple[nn.Module, Any]:
    ids = torch.randint(0, 50, (24, 12), generator=torch.Generator().manual_seed(1))
    return llama().double().eval(), [{"input_ids": part} for part in ids.split(3)]


def pruned(rank: int, make: Any, options: dict[str, Any]) -> dict[str, Any]:
    model, data = make(rank)
    result = subprune.prune(model, data, **{"keep": 0.6, **QUIET, **options})
    report = result.report
    shown = report.held_out or report.fitted
    return {
        "kept": dict(result.plan.kept),
        "state": dict(result.model.state_dict()),
        "figures": [report.fitted.output_change, shown.output_change, shown.agreement],
        "counts": [report.fitted.inputs, shown.inputs, shown.answers],
        "notes": [str(note) for note in report.notes],
    }


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-6) -> None:
    assert one["kept"] == other["kept"]
    assert one["counts"] == other["counts"]
    assert one["figures"] == pytest.approx(other["figures"], rel=1e-6, nan_ok=True)
    for name, x in one["state"].items():
        scale = float(x.abs().max()) if x.numel() else 0.0
        torch.testing.assert_close(other["state"][name], x, rtol=0, atol=tolerance * scale + 1e-30)


def outcomes(ended: list[Ended]) -> list[dict[str, Any]]:
    assert all(one.code == 0 for one in ended), ended
    return [one.outcome for one in ended]


# ---- the same result ---------------------------------------------------------------------------

CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "the default": (single, {"keep": None, "compression": 1.5}, 2),
    "the paper's method": (words, {"method": "asym-in-change"}, 2),
    "one fold, divided": (images, {"method": "asym-in-change", "fit": "least-squares"}, 2),
    "three ranks": (words, {}, 3),
    "norms on the way": (images, {"batchnorm": "sequential", "augment": ["mirror"]}, 2),
    "gradients": (images, {"method": "act-grad"}, 2),
    "sensitivities": (images, {"method": "layer-sampling", "keep": None, "compression": 1.5}, 2),
    "answers": (images, {"allocate": "equal-agreement", "keep": None, "compression": 1.5}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_give_what_one_process_gives(name: str, tmp_path: Path) -> None:
    make, options, count = CASES[name]
    alone = pruned(0, make, options)
    together = outcomes(job(count, pruned, tmp_path, make, options))
    for one in together:
        assert_same(alone, one)
        assert all(torch.equal(x, one["state"][n]) for n, x in together[0]["state"].items())
    note = next(n for n in together[1]["notes"] if "shared the work" in n)
    assert f"{count} ranks" in note
    assert "rank 1 ran" in note
    assert " sent 0.0 MB" not in note


def test_a_batch_for_every_rank(tmp_path: Path) -> None:
    """Fewer batches than ranks are divided; where that cannot be, the job is refused."""
    options = {"method": "asym-in-change", "fit": "least-squares", "drift": False}

    def lone(rank: int) -> tuple[nn.Module, Any]:
        return images()[0], [images()[1][0]]

    assert_same(pruned(0, lone, options), outcomes(job(3, pruned, tmp_path, lone, options))[2])

    def one_input(rank: int) -> tuple[nn.Module, Any]:
        return images()[0], images()[1][0][:1]

    ended = job(2, pruned, tmp_path, one_input, options)
    assert "1 inputs in 1 batches cannot be divided among the 2 ranks" in ended[0].error


def foreseen(rank: int) -> dict[str, int]:
    model, data = images()
    return dict(subprune.forecast(model, data, compression=1.5, progress=False).counts)


def test_a_forecast_is_shared_too(tmp_path: Path) -> None:
    assert [one.outcome for one in job(2, foreseen, tmp_path)] == [foreseen(0)] * 2


def stopped(rank: int, folder: Path, last: int) -> dict[str, Any]:
    """A call that ends after some groups, and goes on when it is made again."""
    seen: list[str] = []

    def tell(plan: Any) -> None:
        seen.append(plan.name)
        if len(seen) == last:
            raise KeyError("enough")

    return pruned(rank, images, {"checkpoint": folder, "callback": tell})


def test_a_job_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    calm = pruned(0, images, {})
    ended = job(2, stopped, tmp_path, tmp_path / "steps", 2)
    assert all("enough" in one.error for one in ended)
    again = outcomes(job(2, stopped, tmp_path, tmp_path / "steps", 100))
    for one in again:
        assert_same(calm, one, 0.0)
        assert any("finished steps were taken over" in n for n in one["notes"])


# ---- ranks that fail, die, hang, or have something else ------------------------------------------


def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 3.0)
    monkeypatch.setattr(module, "JOINING", 3.0)


def ending(rank: int, how: str) -> dict[str, Any]:
    """A prune in which rank 1 ends otherwise than by an answer."""

    def end() -> None:
        if how == "raises":
            raise KeyError("no more")
        os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)

    def tell(plan: Any) -> None:
        if rank == 1:
            end()

    original = dist.all_reduce

    def reduced(x: Any, *args: Any) -> Any:
        if rank == 1 and x.numel() > 2000:
            end()
        return original(x, *args)

    if how == "dies in the exchange":
        how, dist.all_reduce = "dies", reduced
        return pruned(rank, images, {})
    return pruned(rank, images, {"callback": tell})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dies", "rank 1 of the job is dead or hangs"),
        ("dies in the exchange", "rank 1 of the job is dead or hangs"),
        ("hangs", "rank 1 of the job is dead or hangs"),
        ("raises", "rank 1 of the job has ended the call: KeyError: 'no more'"),
    ],
)
def test_a_lost_rank_is_named_in_time(
    how: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    monkeypatch.setattr("rank_jobs.LONGEST", 30.0)
    began = time.monotonic()
    first, _ = job(2, ending, tmp_path, how) if how != "hangs" else _hanging(tmp_path)
    assert first.error.startswith("RankError"), first
    assert said in first.error
    assert time.monotonic() - began < 25


def _hanging(folder: Path) -> list[Ended]:
    """The same, without waiting for the rank that never ends."""
    from rank_jobs import _ended, started

    with started(2, ending, folder, "hangs") as processes:
        processes[0].join(25)
        code = processes[0].exitcode
    return [_ended(folder / "rank-0.pt", code), Ended(None)]


def other_data(rank: int) -> tuple[nn.Module, Any]:
    model, (data, labels) = images()
    return model, (data + rank, labels)


def other_weights(rank: int) -> tuple[nn.Module, Any]:
    model, data = images()
    with torch.no_grad():
        next(model.parameters()).add_(1e-3 * rank)
    return model, data


def other_widths(rank: int) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(6, 8 + rank), nn.ReLU(), nn.Linear(8 + rank, 3)).double()
    return model, torch.randn(48, 6, generator=torch.manual_seed(0), dtype=torch.float64)


def another_network(rank: int) -> tuple[nn.Module, Any]:
    model, (data, labels) = images()
    return (nn.Sequential(model, nn.Linear(4, 4).double()) if rank else model), (data, labels)


def fewer_inputs(rank: int) -> tuple[nn.Module, Any]:
    model, (data, labels) = images()
    return model, (data[rank:], labels[rank:])


@pytest.mark.parametrize(
    "make", [other_data, other_weights, other_widths, another_network, fewer_inputs]
)
def test_what_another_rank_was_given_is_noticed(make: Any, tmp_path: Path) -> None:
    for one in job(2, pruned, tmp_path, make, {}):
        assert "RankError: rank 1 of the job has another model, other data" in one.error


def with_own(rank: int, options: list[dict[str, Any]]) -> dict[str, Any]:
    return pruned(rank, images, options[rank])


@pytest.mark.parametrize(
    "options",
    [
        [{"seed": 0}, {"seed": 1}],
        [{}, {"method": "asym-in-change"}],
        [{"folds": 4}, {"folds": 2}],
        [{"augment": ["mirror"]}, {}],
        [{"keep": 0.5}, {"keep": 0.6}],
    ],
)
def test_other_options_on_another_rank_are_noticed(
    options: list[dict[str, Any]], tmp_path: Path
) -> None:
    """At once: other methods and folds would go different ways."""
    for one in job(2, with_own, tmp_path, options):
        assert "RankError: rank 1 of the job has another model, other data" in one.error


def test_other_threads_on_another_rank_are_noticed_before_the_work(tmp_path: Path) -> None:
    """Sums in another order would give another model in the end."""
    for one in job(2, with_own, tmp_path, [{"threads": 1}, {"threads": 2}]):
        assert "RankError: rank 1 of the job has another number of threads" in one.error


def lonely(rank: int, options: dict[str, Any]) -> Any:
    return pruned(rank, images, options) if rank == 0 else None


def test_a_call_on_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short(monkeypatch)
    first, _ = job(2, lonely, tmp_path, {})
    assert "rank 1 of the job has not begun the same call within 3 seconds" in first.error
    assert "distributed=False" in first.error
    alone, _ = job(2, lonely, tmp_path, {"distributed": False})
    assert_same(pruned(0, images, {}), alone.outcome, 0.0)


def test_without_a_job_there_is_nothing_to_share() -> None:
    with pytest.raises(OptionError, match=r"distributed=True is for a torch\.distributed job"):
        pruned(0, images, {"distributed": True})
    numbers = torch.ones(3, dtype=torch.float64)
    ALONE.sum([numbers])
    ALONE.largest([numbers])
    assert numbers.tolist() == [1, 1, 1]
    assert ALONE.each(lambda x: 2 * x, [1, 2]) == [2, 4]
    assert ALONE.first(lambda: "a") == "a"


def ranked(view: Any) -> list[int]:
    return list(range(view.n_units))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "chip"}, "method='chip' looks at the inputs one by one"),
        ({"method": ranked}, "method='ranked' looks at the inputs one by one"),
        ({"patches": "random"}, "patches='random' draws them"),
        ({"refine": 2}, "refine=2 looks at one batch after another"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    for one in job(2, pruned, tmp_path, images, options):
        assert one.error.startswith(f"OptionError: {said}"), one
        assert "distributed=False" in one.error


# ---- wrapped models -----------------------------------------------------------------------------


def wrapped(rank: int, kind: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model: nn.Module = net
    if kind == "DDP":
        model = DistributedDataParallel(net)
    elif kind == "FSDP":
        model = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    else:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(net, mesh=mesh)
    subprune.prune(model, torch.randn(16, 4), keep=0.5, **QUIET)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("DDP", "the model is wrapped in DistributedDataParallel; give model.module"),
        ("FSDP", "the model is sharded by FSDP"),
        ("FSDP2", "the model is sharded by FSDP"),
    ],
)
def test_wrapped_models_are_refused_with_the_way_out(kind: str, said: str, tmp_path: Path) -> None:
    for one in job(2, wrapped, tmp_path, kind):
        assert one.error.startswith(f"OptionError: {said}"), one.error


# ---- pieces ---------------------------------------------------------------------------------------


def test_batches_are_divided_in_runs() -> None:
    assert _divided([128] * 4, 2) == [range(2), range(2, 4)]
    assert _divided([128] * 4, 3) == [range(1), range(1, 3), range(3, 4)]
    assert _divided([5, 1, 1, 1], 2) == [range(1), range(1, 4)]
    assert _divided([1, 1, 100], 3) == [range(1), range(1, 2), range(2, 3)]
    for count in range(1, 8):
        shares = _divided([3, 1, 4, 1, 5, 9, 2], count)
        assert [i for share in shares for i in share] == list(range(7))
        assert all(len(share) for share in shares)


def test_large_tensors_are_summed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PARCEL", 100)
    tensors = [torch.randn(30, 7), torch.randn(3), torch.randn(()), torch.randn(2, 300)]
    parcels = list(_parcels(tensors))
    assert all(sum(x.numel() for x in p) <= 100 for p in parcels[:-2])
    joined = torch.cat([x.reshape(-1) for parcel in parcels for x in parcel])
    assert torch.equal(joined, torch.cat([x.reshape(-1) for x in tensors]))


def test_torchrun_writes_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "prune --model lenet-mnist --data mnist-sample --compression 4 --no-guarantees --output"
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert runner(monkeypatch, capsys)(*words.split(), alone).code == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "subprune", *words.split(), str(together)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("read by") == 1, "one rank prints"
    assert "2 ranks shared the work: rank 0 ran 256 of 512 inputs" in ran.stdout
    assert sorted(p.name for p in together.iterdir()) == sorted(p.name for p in alone.iterdir())
    one, two = (
        subprune.load(build("lenet"), folder / "model.safetensors").state_dict()
        for folder in (alone, together)
    )
    for name, x in one.items():
        torch.testing.assert_close(two[name], x, rtol=0, atol=1e-6 * float(x.abs().max()))
