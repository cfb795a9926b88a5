"""Real cells on the shipped sample: through worker processes, Ray, and the command line; the page
in a browser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from subprune.errors import DataError
from subprune_paper import compiled, figures, page
from subprune_paper.cells import Context, load_sources, run_job
from subprune_paper.cli import app
from subprune_paper.config import Config, parse_config
from subprune_paper.engine import Engine, Summary, run_cells
from subprune_paper.grid import cells_of, jobs_of
from subprune_paper.local_engine import LocalEngine
from subprune_paper.page import made_with, write_report
from subprune_paper.store import TIMINGS, Store
from subprune_paper.tables import read_rows

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": "lenet",
    "dataset": "mnist-sample",
    "methods": ["asym-in-change", "layer-random"],
    "values": [8],
    "seeds": [1],
    "batches": 1,
    "batch_size": 64,
    "verify_samples": 100,
    "test": 200,
    "finetune": ["none", "limited"],
    "finetune_epochs": 1,
    "paper_model": "lenet",
    "paper_dense": 97.75,
}

KILLER = """
import os, signal
from pathlib import Path
from subprune import method
from subprune.select.scores import uniform
from subprune.select.selector import order_by

@method("killer-{name}")
def killer(ranker):
    "Kills its own process, the first time it is called."
    mark = Path({mark!r})
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return order_by(uniform(ranker))
"""


def serial(config: Config) -> dict[str, dict[str, Any]]:
    """What the cells give without any engine."""
    found = {}
    for job in jobs_of(cells_of(config), config.sources):
        for cell, outcome in run_job(job, Context()):
            assert outcome.status == "done", outcome
            found[cell.key] = {k: v for k, v in outcome.values.items() if k not in TIMINGS}
    return found


def stored(store: Store, like: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["key"]: {name: row[name] for name in like[row["key"]]} for row in store.rows()}


def killing(tmp_path: Path, name: str) -> Config:
    """A grid with a method that kills the worker once."""
    source = KILLER.format(name=name, mark=str(tmp_path / "was-killed"))
    sources = ((f"killer_{name}", source),)
    load_sources(sources)
    changes = {
        "methods": [f"killer-{name}", "random"],
        "allocate": "uniform",
        "finetune": ["none"],
    }
    return parse_config({**TINY, **changes}, sources)


def run_and_compare(config: Config, engine: Engine, tmp_path: Path) -> Summary:
    """Run on the engine, where the killer strikes; then compare with a plain loop, where it is
    tame.
    """
    with Store(tmp_path / "r.sqlite") as store:
        summary = run_cells(config, cells_of(config), store, engine)
        plain = serial(config)
        assert stored(store, plain) == plain
        assert max(row["attempts"] for row in store.rows()) == 2
    assert (tmp_path / "was-killed").exists()
    assert not summary.failed
    return summary


def test_a_killed_worker_process_costs_only_the_cell_it_was_at(tmp_path: Path) -> None:
    config = killing(tmp_path, "local")
    run_and_compare(config, LocalEngine(1, Context(), "fork"), tmp_path)


def test_a_killed_ray_worker_costs_only_the_cell_it_was_at(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra subprune-paper[ray])")
    from subprune_paper.ray_engine import RayEngine

    config = killing(tmp_path, "ray")
    run_and_compare(config, RayEngine(1, Context()), tmp_path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run."""
    folder, config = tmp_path_factory.mktemp("tiny"), parse_config(TINY)
    with Store(folder / "results.sqlite") as store:
        run_cells(
            config,
            cells_of(config),
            store,
            LocalEngine(1, Context(cache=str(folder / "cache")), "fork"),
        )
    text = [f"{name} = {json.dumps(value)}" for name, value in TINY.items()]
    (folder / "tiny.toml").write_text("\n".join(text))
    return folder


def test_limited_finetuning_and_equal_accuracy_budgets(results: Path) -> None:
    with Store(results / "results.sqlite") as store:
        rows = {(r["method"], bool(r["reweight"]), r["finetune"]): r for r in store.rows()}
    assert {r["status"] for r in rows.values()} == {"done"}
    assert len(rows) == 9
    tuned, plain = (rows["layer-random", False, ft] for ft in ("limited", "none"))
    assert tuned["kept"] == plain["kept"]
    assert tuned["correct"] != plain["correct"]
    assert (
        tuned["note"]
        == f"fine-tuned by the {'compiled' if compiled.available() else 'pytorch'} loop"
    )
    assert plain["note"] is None
    assert all(r["compression"] >= 8 for r in rows.values() if r["method"] != "dense")
    assert (
        rows["asym-in-change", True, "none"]["top1"] > rows["asym-in-change", False, "none"]["top1"]
    )
    assert list((results / "cache").glob("curves-*.json")), "accuracy curves are kept"


def test_commands_on_a_finished_run(results: Path) -> None:
    runner, own = CliRunner(), [str(results / "tiny.toml"), "--output", str(results)]
    again = runner.invoke(app, ["run", *own, "--workers", "1"])
    assert again.exit_code == 0, again.output
    assert "0 cells run, 9 finished before" in again.output
    assert "9 cells" in runner.invoke(app, ["status", *own]).output
    assert runner.invoke(app, ["export", own[0], str(results / "all.csv"), *own[1:]]).exit_code == 0
    with Store(results / "results.sqlite") as store:
        rows = store.rows()
    assert sorted(read_rows(results / "all.csv"), key=lambda row: row["key"]) == rows
    (results / "cut.csv").write_text("key,model\n1,lenet\n")
    with pytest.raises(DataError, match=r"cut\.csv cannot be read as rows"):
        read_rows(results / "cut.csv")


def test_a_part_of_the_grid_can_be_reported_without_matplotlib(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    monkeypatch.setattr(page, "can_draw", lambda: False)
    own = [str(results / "tiny.toml"), "--output", str(results), "--only", "method=layer-random"]
    ran = CliRunner().invoke(app, ["report", *own])
    assert ran.exit_code == 0, ran.output
    assert "report.html" in ran.output
    assert "no figures: they need matplotlib" in ran.output
    text = (results / "report.html").read_text()
    assert "LayerRandom" in text
    assert "AsymInChange" not in text
    assert "± 0.0" not in text, "one run has no deviation"


def test_a_report_names_versions_once_and_all_their_commits() -> None:
    def made(torch: str, commit: str | None = None) -> dict[str, Any]:
        return {"versions": json.dumps({"torch": torch, **({"commit": commit} if commit else {})})}

    rows = [made("1", "a"), made("1", "b"), made("1", "b"), made("2", "a"), made("3")]
    assert made_with(rows) == "torch 1, commits b, a; torch 2, commit a; torch 3"


def test_unreachable_ratios_are_recorded_not_failed(tmp_path: Path) -> None:
    config = parse_config(
        {
            **TINY,
            "methods": ["random"],
            "values": [100000],
            "finetune": ["none"],
            "reweight": [True],
        }
    )
    with Store(tmp_path / "r.sqlite") as store:
        summary = run_cells(config, cells_of(config), store, LocalEngine(1, Context(), "fork"))
        assert (summary.infeasible, summary.failed) == (1, {})
        assert "cannot be reached" in store.rows()[0]["note"]


PROBE = """
<script>
window.addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll("section:first-of-type g[data-method]")]
      .filter(g => getComputedStyle(g).display !== "none").length;
  const button = document.querySelector(".legend button"), all = shown();
  button.click();
  const fewer = shown();
  button.click();
  const dots = document.querySelectorAll("svg circle").length, lines = document.querySelectorAll("svg path").length;
  const found = { all, fewer, again: shown(), dots, lines, rows: document.querySelectorAll("td").length };
  const told = { id: "probe", textContent: JSON.stringify(found) };
  document.body.append(Object.assign(document.createElement("pre"), told));
});
</script></body>
"""


def chromium() -> str:
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip(
            "there is no chromium on this machine; install Debian's package chromium to test the page"
        )
    return found


def test_the_page_draws_without_errors_and_its_legend_toggles(
    results: Path, tmp_path: Path
) -> None:
    browser = chromium()
    pytest.importorskip(
        "matplotlib", reason="matplotlib is not installed (extra subprune-paper[full])"
    )
    with Store(results / "results.sqlite") as store:
        written = write_report(parse_config(TINY), store.rows(), tmp_path)
    assert {path.suffix for path in written} == {".html", ".csv", ".png"}
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text), "the page needs nothing from elsewhere"
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    flags += "--disable-component-update --disable-sync --virtual-time-budget=5000 --enable-logging=stderr --dump-dom"
    ran = subprocess.run(
        [
            browser,
            *flags.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "CONSOLE" not in ran.stderr, ran.stderr
    probe = re.search(r'<pre id="probe">(.*?)</pre>', ran.stdout)
    assert probe, ran.stdout[-500:] + ran.stderr[-500:]
    found = json.loads(probe[1])
    assert found["fewer"] < found["all"] == found["again"] == 5
    assert found["dots"] == 2 * 5 * 2
    assert found["rows"] > 0
