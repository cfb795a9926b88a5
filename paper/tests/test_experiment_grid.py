"""Experiments as TOML, their cells, the store, and the loop that every engine shares."""

from __future__ import annotations

import csv
import dataclasses
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from subprune.errors import DataError, OptionError
from subprune.options.names import AllocatorName
from subprune.options.table import OPTIONS
from subprune_paper.config import (
    Config,
    find_config,
    parse_config,
    read_config,
    shipped_names,
)
from subprune_paper.engine import Event, plan_workers, run_cells
from subprune_paper.grid import DENSE, Cell, Job, cells_of, jobs_of, parse_filters, select
from subprune_paper.store import Outcome, Store
from subprune_paper.tables import dense_top1, points, write_rows

BASE: dict[str, Any] = {
    "name": "x",
    "model": "lenet",
    "dataset": "mnist-sample",
    "methods": ["random", "act-grad"],
}


def config(**changes: Any) -> Config:
    return parse_config({**BASE, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": ["random"]}, "did you mean 'methods'"),
        ({"target": "keep"}, "target is now goal"),
        ({"methods": ["asym-inchange"]}, "did you mean 'asym-in-change'"),
        ({"model": "lenett"}, "did you mean 'lenet'"),
        ({"dataset": "cifar"}, "did you mean 'cifar10'"),
        ({"finetune": ["some"]}, "limited"),
        ({"batchnorm": ["recalibrated"]}, "did you mean 'recalibrate'"),
        ({"allocate": "equal-acc"}, "equal-accuracy"),
        ({"values": [0.5]}, "compression must lie between 1"),
        ({"values": [2], "goal": "keep"}, "keep must lie between 0"),
        ({"values": []}, "at least one"),
        ({"curves": "act-grad"}, "must be a table"),
        ({"curves": {"random": "layer-in-chang"}}, "did you mean 'layer-in-change'"),
        ({"curves": {"random": 2}}, "curves.random"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"seeds": ["a"]}, "must be of type int"),
        ({"reweight": True}, "must be a list"),
        ({"batches": 0}, "at least 1"),
        ({"name": "a b"}, "small letters"),
        ({"memory": 0}, "GB"),
    ],
)
def test_bad_settings_are_refused_with_the_way_out(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        config(**changes)


def test_settings_that_are_options_of_prune_are_those_options() -> None:
    """A key of an experiment that has the name of an option means that option, with its values."""
    keys = {f.name for f in dataclasses.fields(Config)}
    assert keys & set(OPTIONS) == {"allocate", "batchnorm", "ignore", "only"}
    for allocate in get_args(AllocatorName):
        assert config(allocate=allocate).allocate == allocate
    for batchnorm in OPTIONS["batchnorm"].choices:
        assert config(batchnorm=[batchnorm]).batchnorm == (batchnorm,)
    pruned, left_whole = ["conv*"], ["fc1"]
    assert config(only=pruned).only == tuple(pruned)
    assert config(ignore=left_whole).ignore == tuple(left_whole)


def test_missing_settings_and_files(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="methods"):
        parse_config({"name": "x", "model": "lenet", "dataset": "mnist"})
    with pytest.raises(OptionError, match="did you mean 'lenet-mnist'"):
        find_config("lenet-mnis.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(DataError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "own.toml").write_text(
        'name="x"\nmodel="lenet"\ndataset="mnist"\nmethods=["mine"]\nmodules=["no.py"]'
    )
    with pytest.raises(DataError, match=r"no\.py"):
        read_config(tmp_path / "own.toml")


def test_shipped_experiments_have_the_papers_settings() -> None:
    names = {
        "lenet-mnist",
        "resnet56-cifar10",
        "vgg11-cifar10",
        "vgg11-two-layers-selected",
        "vgg11-two-layers-equal",
    }
    assert names | {"smoke"} == set(shipped_names())
    for name in names:
        read = read_config(name)
        assert (read.seeds, read.batches, read.batch_size) == ((42, 43, 44, 45, 46), 4, 128)
        assert read.verify_samples == 10_000
        assert read.goal == "keep" or read.values == (1, 2, 4, 8, 16, 32, 64, 128)


def test_cells_of_the_grid_are_different_and_stable() -> None:
    grid = config(values=[1, 2], seeds=[1, 2], finetune=["none", "limited"])
    cells = cells_of(grid)
    assert len({c.key for c in cells}) == len(cells) == 1 + 2 * 2 * 2 * 2
    assert [c.finetune for c in cells if c.method == DENSE] == ["none"]
    assert cells_of(grid)[1].key == cells[1].key
    changed = dataclasses.replace(cells[1], seed=cells[1].seed + 1)
    assert changed.key != cells[1].key


def test_what_does_not_matter_to_a_cell_does_not_change_its_key() -> None:
    few, many = (cells_of(config(values=[2], seeds=[1], verify_samples=n)) for n in (10, 20))
    assert [c.key for c in few] == [c.key for c in many], "neither method has accuracy curves"


def test_the_sequential_variants_use_the_layerwise_curves() -> None:
    cells = cells_of(
        config(
            methods=["asym-in-change", "seq-in-change", "layer-in-change"], values=[2], seeds=[1]
        )
    )
    assert {c.curves for c in cells if c.method != DENSE} == {"layer-in-change"}
    jobs = jobs_of([c for c in cells if c.method != DENSE])
    assert len(jobs) == 2, "one job with reweighting and one without"


def test_curves_can_be_taken_from_another_method() -> None:
    changes: dict[str, Any] = {
        "methods": ["layer-greedy-fs", "layer-random", "random"],
        "values": [2],
    }
    found = {
        c.method: c.curves
        for c in cells_of(config(**changes, curves={"layer-greedy-fs": "layer-in-change"}))
        if c.method != DENSE
    }
    assert found == {
        "layer-greedy-fs": "layer-in-change",
        "layer-random": "layer-random",
        "random": "",
    }


@pytest.mark.parametrize(("goal", "values"), [("compression", [2, 4]), ("keep", [0.5])])
def test_a_grid_without_the_value_one_has_the_dense_cell_too(
    goal: str, values: list[float], tmp_path: Path
) -> None:
    """Reports are made beside it, so a grid of one's own can be reported."""
    own = config(values=values, goal=goal, seeds=[1])
    cells = cells_of(own)
    assert [c.method for c in cells].count(DENSE) == 1
    assert [c.key for c in cells_of(config(values=[1, *values], goal=goal, seeds=[1]))] == [
        c.key for c in cells
    ]
    rows: list[dict[str, Any]] = [
        {
            **dataclasses.asdict(c),
            **{"status": "done", "top1": 90.0, "speedup": 2.0, "prune_seconds": 1.0},
            **{"budget_seconds": 0.0, "parameters": 10, "versions": "{}", "commit": ""},
        }
        for c in cells
    ]
    assert not math.isnan(dense_top1(rows))
    assert sorted(p.value for curve in points(own, rows).values() for p in curve)[0] == min(values)


def test_filters_choose_cells_and_refuse_nonsense() -> None:
    cells = cells_of(config(values=[1, 2, 4], seeds=[1, 2]))
    chosen = select(cells, parse_filters(["method=random", "value=4", "reweight=true", "seed=2"]))
    assert [c.label for c in chosen if c.method != DENSE] == ["random, c = 4, seed 2"]
    assert len(chosen) == 2, "the dense cell, which reports need, is among them"
    with pytest.raises(OptionError, match="did you mean 'method'"):
        parse_filters(["metod=random"])
    with pytest.raises(OptionError, match="leaves no cell"):
        select(cells, parse_filters(["seed=9"]))


def test_workers_fit_cores_and_memory() -> None:
    workers, threads = plan_workers(config(memory=1e6))
    assert workers == 1
    assert threads >= 1
    assert plan_workers(config(), 3)[0] == 3
    with pytest.raises(OptionError, match="at least 1"):
        plan_workers(config(), 0)


DONE = {
    "correct": 9,
    "images": 10,
    "top1": 90.0,
    "speedup": 2.0,
    "prune_seconds": 1.0,
    "budget_seconds": 0.0,
}


def test_a_finished_row_is_never_overwritten_and_a_failed_one_is(tmp_path: Path) -> None:
    cell = cells_of(config())[0]
    with Store(tmp_path / "r.sqlite") as store:
        assert store.record(cell, Outcome("failed", {"note": "no"}), "x", {})
        assert store.finished() == set()
        assert store.record(cell, Outcome("done", DONE), "x", {"torch": "1"})
        assert not store.record(cell, Outcome("done", {**DONE, "top1": 1.0}), "x", {})
        assert [(r["top1"], r["note"]) for r in store.rows()] == [(90.0, None)]


def test_two_writers_share_the_cells_and_a_dead_one_gives_its_claims_back(tmp_path: Path) -> None:
    cells = cells_of(config())
    keys = [c.key for c in cells]
    one, two = Store(tmp_path / "r.sqlite"), Store(tmp_path / "r.sqlite")
    assert one.claim(keys[:3]) == set(keys[:3])
    assert two.claim(keys[:5]) == set(keys[3:5])
    assert one._lock is not None
    one._lock.close()  # as if it had been killed: nothing is tidied up
    assert two.claim(keys[:3]) == set(keys[:3])
    two.record(cells[0], Outcome("done", DONE), "x", {})
    assert two.claim(keys[:1]) == set()
    two.close()


def test_many_threads_write_to_one_file(tmp_path: Path) -> None:
    cells = cells_of(config())[:40]

    def write(own: list[Cell]) -> None:
        with Store(tmp_path / "r.sqlite") as store:
            for cell in own:
                store.record(cell, Outcome("done", DONE), "x", {})

    threads = [threading.Thread(target=write, args=(cells[i::4] + cells[:5],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(tmp_path / "r.sqlite") as store:
        assert len(store.rows()) == 40


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(DataError, match=r"r\.sqlite"):
        Store(tmp_path / "r.sqlite")


class FakeEngine:
    """Runs cells at once; fails or loses those it is told to, the first few times."""

    workers = 2

    def __init__(self, trouble: dict[str, list[str]]) -> None:
        self.trouble, self.queue, self.ran = trouble, [], []  # type: ignore[var-annotated]

    def submit(self, number: int, job: Job) -> None:
        self.queue.append((number, job))

    def events(self) -> Iterator[Event]:
        number, job = self.queue.pop(0)
        for cell in job.cells:
            self.ran.append(cell.key)
            kind = self.trouble[cell.key].pop(0) if self.trouble.get(cell.key) else "done"
            if kind == "lost":
                yield Event("lost", number, text="killed")
                return
            yield Event(
                "outcome",
                number,
                cell=cell,
                outcome=Outcome(kind, DONE if kind == "done" else {"note": "oh"}),
            )
        yield Event("ended", number)

    def close(self) -> None: ...


def test_failed_cells_are_tried_again_then_reported_and_lose_nothing(tmp_path: Path) -> None:
    grid = config(values=[2, 4], seeds=[1])
    cells = cells_of(grid)
    keys = [c.key for c in cells]
    trouble = {
        keys[0]: ["failed"] * 3,
        keys[1]: ["failed"],
        keys[2]: ["lost"],
        keys[3]: ["infeasible"],
    }
    with Store(tmp_path / "r.sqlite") as store:
        summary = run_cells(grid, cells, store, FakeEngine(trouble))
        assert (summary.done, summary.infeasible, list(summary.failed)) == (
            len(cells) - 2,
            1,
            [cells[0].label],
        )
        states = {r["key"]: (r["status"], r["attempts"]) for r in store.rows()}
        assert states[keys[0]] == ("failed", 3)
        assert states[keys[1]] == states[keys[2]] == ("done", 2)
        assert states[keys[3]] == ("infeasible", 1)
        again = FakeEngine({})
        assert run_cells(grid, cells, store, again).done == 1
        assert again.ran == [keys[0]], "only the failed cell is run again"


def test_rows_export_to_csv_and_parquet_and_the_paper_stands_beside_them(tmp_path: Path) -> None:
    grid = config(values=[1, 2], seeds=[1], paper_model="lenet", paper_dense=97.75)
    with Store(tmp_path / "r.sqlite") as store:
        run_cells(grid, cells_of(grid), store, FakeEngine({}))
        rows = store.rows()
    write_rows(rows, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [r["top1"] for r in csv.DictReader(file)] == ["90.0"] * len(rows)
    (point,) = points(grid, rows)["act-grad", True, "keep", "none"]
    assert (point.paper_top1, point.paper_speedup, round(point.share, 3)) == (97.2, 2.0, 1.0)
    assert point.difference == pytest.approx(100 - 100 * 97.2 / 97.75)
    with pytest.raises(OptionError, match=r"\.csv or \.parquet"):
        write_rows(rows, tmp_path / "all.txt")
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed, so there is no Parquet here"
    )
    write_rows(rows, tmp_path / "all.parquet")
    assert parquet.read_table(tmp_path / "all.parquet").num_rows == len(rows)
