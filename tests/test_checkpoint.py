"""A call that was stopped goes on from the last finished group, and gives what it would have."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from landing_nets import Blocks, Stream, made
from language_models import llama, padded
from safetensors.torch import load_file
from torch import Tensor, nn

import subprune
from subprune.errors import BudgetError, DataError
from subprune.files import locked
from subprune.loop import walk as walking
from subprune.plan import GroupPlan

HERE = Path(__file__).parent


class Stopped(Exception):
    """What a callback raises to stop the work."""


def blocks() -> tuple[nn.Module, Any]:
    return made(Blocks).float(), torch.randn(48, 3, 10, 10, generator=torch.manual_seed(3))


def stream() -> tuple[nn.Module, Any]:
    return made(Stream).float(), torch.randn(64, 5, generator=torch.manual_seed(3))


def language() -> tuple[nn.Module, Any]:
    return llama(), padded(24)


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], dict[str, Any]]] = {
    "default": (blocks, {"compression": 1.5}),
    "refine": (blocks, {"compression": 1.5, "refine": 2}),
    "renewed norms": (blocks, {"keep": 0.6, "batchnorm": "sequential"}),
    "dense targets": (blocks, {"keep": 0.6, "method": "layer-in-change"}),
    "random patches": (blocks, {"keep": 0.6, "patches": "random"}),
    "streams": (stream, {"keep": 0.7, "streams": True}),
    "shared inputs": (language, {"keep": 0.7}),
    "no versions": (blocks, {"keep": 0.6, "ridge": 0}),
}


def tensors(result: subprune.Result) -> dict[str, Tensor]:
    return dict(result.model.state_dict())


def same(a: subprune.Result, b: subprune.Result) -> None:
    """Everything but times."""
    one, other = tensors(a), tensors(b)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    plans = [r.plan.to_dict() for r in (a, b)]
    for plan in plans:
        for group in plan["groups"]:
            group["seconds"] = 0.0
    assert repr(plans[0]) == repr(plans[1])
    assert repr(a.report.fitted) == repr(b.report.fitted)
    assert repr(a.report.held_out) == repr(b.report.held_out)


def prune_until(number: int, model: nn.Module, data: Any, **options: Any) -> int:
    """Stop when so many groups are decided; how many were."""
    seen: list[GroupPlan] = []

    def stop(group: GroupPlan) -> None:
        seen.append(group)
        if len(seen) == number:
            raise Stopped

    with pytest.raises(Stopped):
        subprune.prune(model, data, callback=stop, time_calls=False, **options)
    return len(seen)


@pytest.mark.parametrize("case", CASES)
def test_stopped_at_every_group_and_gone_on_with(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = CASES[case]
    model, data = make()
    whole = subprune.prune(model, data, time_calls=False, **options)
    decided: list[str] = []
    decide = walking._decide

    def watched(tour: Any, visit: Any, *rest: Any) -> Any:
        decided.append(visit.group.name)
        return decide(tour, visit, *rest)

    monkeypatch.setattr(walking, "_decide", watched)
    groups = len(whole.plan.groups)
    for number in range(1, 1 + groups) if case == "default" else (groups // 2,):
        folder = tmp_path / str(number)
        prune_until(number, model, data, checkpoint=folder, **options)
        assert len(decided) >= number  # some targets are ranked ahead, none is decided ahead
        decided.clear()
        told: list[str] = []
        again = subprune.prune(
            model,
            data,
            checkpoint=folder,
            time_calls=False,
            callback=lambda group, told=told: told.append(group.name),
            **options,
        )
        assert told == [g.name for g in whole.plan.groups]
        assert len(decided) == len(whole.plan.groups) - number, "finished groups are not made again"
        decided.clear()
        same(whole, again)
        assert any("taken over from a checkpoint" in note for note in again.report.notes)


def test_stopped_again_and_again(tmp_path: Path) -> None:
    model, data = blocks()
    whole = subprune.prune(model, data, compression=1.5, time_calls=False)
    for number in range(1, 1 + len(whole.plan.groups)):
        prune_until(number, model, data, compression=1.5, checkpoint=tmp_path)
    again = subprune.prune(model, data, compression=1.5, checkpoint=tmp_path, time_calls=False)
    same(whole, again)


def test_another_call_takes_nothing_over(tmp_path: Path) -> None:
    model, data = blocks()
    prune_until(2, model, data, keep=0.6, checkpoint=tmp_path)
    other = made(Blocks, seed=1).float()
    for changed in ({"model": other}, {"data": data + 1}, {"keep": 0.5}, {"ridge": 1}):
        call = {"model": model, "data": data, "keep": 0.6, **changed}
        result = subprune.prune(checkpoint=tmp_path, time_calls=False, **call)
        notes = " ".join(result.report.notes)
        assert "taken over" not in notes
        assert "checkpoints of other calls" in notes
        same(result, subprune.prune(time_calls=False, **call))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_step_is_made_again(damage: str, tmp_path: Path) -> None:
    model, data = blocks()
    whole = subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, time_calls=False)
    files = sorted(tmp_path.rglob("*.safetensors"))
    content = bytearray(files[2].read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
    kinds = {"cut": content[:-40], "flipped": content, "empty": b"", "other": b"{}" * 50}
    files[2].write_bytes(kinds[damage])
    again = subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, time_calls=False)
    same(whole, again)
    assert any("is damaged" in note for note in again.report.notes)
    third = subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, time_calls=False)
    assert not any("is damaged" in note for note in third.report.notes)


def test_damaged_budgets_are_made_again(tmp_path: Path) -> None:
    model, data = blocks()
    whole = subprune.prune(model, data, compression=2, checkpoint=tmp_path, time_calls=False)
    (path,) = tmp_path.rglob("budgets.json")
    assert json.loads(path.read_text()) == whole.plan.counts
    path.write_text("{")
    same(whole, subprune.prune(model, data, compression=2, checkpoint=tmp_path, time_calls=False))


def test_a_refused_goal_leaves_no_folder(tmp_path: Path) -> None:
    model, data = blocks()
    with pytest.raises(BudgetError):
        subprune.prune(model, data, compression=1e6, checkpoint=tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_a_full_disk_ends_the_checkpoint_and_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = blocks()
    whole = subprune.prune(model, data, keep=0.6, time_calls=False)
    left = itertools.count(3, -1)
    fsync = os.fsync

    def full(handle: int) -> None:
        if next(left) <= 0:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    result = subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, time_calls=False)
    monkeypatch.undo()
    same(whole, result)
    assert any("No space left" in note for note in result.report.notes)
    assert not list(tmp_path.rglob("*.tmp"))
    again = subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, time_calls=False)
    same(whole, again)
    assert any("2 finished steps were taken over" in note for note in again.report.notes)


# ---- two at once -----------------------------------------------------------------------------


def test_a_second_call_is_refused_while_the_first_works(tmp_path: Path) -> None:
    model, data = blocks()
    refusals: list[str] = []

    def second() -> None:
        with pytest.raises(DataError) as error:
            subprune.prune(blocks()[0], data, keep=0.6, checkpoint=tmp_path, time_calls=False)
        refusals.append(str(error.value))

    def meanwhile(group: GroupPlan) -> None:
        if not refusals:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    subprune.prune(model, data, keep=0.6, checkpoint=tmp_path, callback=meanwhile, time_calls=False)
    assert len(refusals) == 1
    assert "another process works in the checkpoint" in refusals[0]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from subprune.files import locked\n"
        "with locked(Path(sys.argv[1]), 'it'):\n    print('held', flush=True); time.sleep(60)"
    )
    folder = tmp_path / "folder"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(DataError, match="another process works in it"), locked(folder, "it"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with locked(folder, "it"):
        assert (folder / ".lock").exists()
    assert not (folder / ".lock").exists()


# ---- the command line ------------------------------------------------------------------------


def command(output: Path, *more: str) -> list[str]:
    words = ["prune", "--model", "lenet-mnist", "--data", "mnist-sample", "--compression", "4"]
    words += ["--n-samples", "64", "--output", str(output), "--no-guarantees", "--no-time-calls"]
    return [sys.executable, "-m", "subprune", *words, *more]


def steps(output: Path) -> int:
    """Files of finished groups. Folders come and go while another process works in them."""
    names = [name for _, _, files in os.walk(output) for name in files]
    return sum(fnmatch(name, "*-0*.safetensors") for name in names)


def test_a_second_command_with_the_same_output_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "output", "it"):
        second = subprocess.run(command(tmp_path / "output"), capture_output=True, text=True)
        left = sorted(p.name for p in (tmp_path / "output").iterdir())
    assert second.returncode
    assert "another process works in --output" in second.stderr
    assert left == [".lock"]


def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "killed"
    process = subprocess.Popen(
        command(output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not steps(output):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = steps(output)
    assert not (output / "model.safetensors").exists() or finished == 0
    subprocess.run(command(output), check=True, capture_output=True)
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    folders = (output, tmp_path / "whole")
    one, other = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (output / "checkpoint").exists()
    assert not (output / ".lock").exists()
    assert finished == 0 or "taken over" in (output / "report.json").read_text()
