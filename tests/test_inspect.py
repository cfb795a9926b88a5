"""The table of groups: exact costs, readers, and a reason for everything that stays."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from zoo import ZOO, flops

from subprune.cutting.surgery import prove
from subprune.program.program import flat_tensors
from subprune.program.record import as_inputs
from subprune.report.inspection import inspect


@pytest.mark.parametrize(
    "name", ["lenet", "densenet", "mobilenet-v3", "unet", "gqa", "lstm", "gru", "mha"]
)
def test_cost_of_a_unit_is_what_its_removal_saves(name: str) -> None:
    model, example = ZOO[name].build()
    table = inspect(model, example)
    assert table.params == sum(p.numel() for p in model.parameters())
    inputs = flat_tensors(example)[0].shape[0]
    assert table.flops == flops(model, example) / inputs
    for row in table:
        if row.units < 2:
            continue
        small = prove(
            model, table.structure, {row.name: list(range(1, row.units))}, as_inputs(example), 1e-4
        )
        saved = (
            table.params - sum(p.numel() for p in small.parameters()),
            table.flops - flops(small, example) / inputs,
        )
        assert row.params_per_unit[0] <= saved[0] <= row.params_per_unit[1]
        assert row.flops_per_unit[0] <= saved[1] <= row.flops_per_unit[1]


def test_lenet_by_hand() -> None:
    model, example = ZOO["lenet"].build()
    row = inspect(model, example)["conv2"]
    assert (row.kind, row.units, row.default) == ("channel", 16, True)
    assert (row.producers, row.followers, row.consumers) == (("conv2",), (), ("fc1",))
    saved = 6 * 9 + 1 + 25 * 120  # its filter, its bias, its columns of fc1
    assert row.params_per_unit == (saved, saved)
    work = 2 * (11 * 11 * 6 * 9 + 25 * 120)  # two operations a product; one of the two images
    assert row.flops_per_unit == (work, work)


@pytest.mark.parametrize("name", ZOO)
def test_text_and_html_name_every_group_and_refused_layer(name: str) -> None:
    table = inspect(*ZOO[name].build())
    text, page = str(table), table._repr_html_()
    HTMLParser().feed(page)
    assert page.count("<td>") == 8 * len(table)
    for row in table:
        assert row.name in text
        assert row.default or row.obstacles
    for layer, why in table.refused.items():
        assert f"{layer or '(model)'}: {why}" in text
    assert "not prunable" in text or not table.refused
    assert max(len(line) for line in text.splitlines()) < 400


def test_unused_parameters_are_listed() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.spare = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(self.fc1(x).relu())

    table = inspect(Spare(), torch.randn(2, 3))
    assert table.unused == ("spare.weight", "spare.bias")
    assert table.params == 16 + 10 + 30
    assert "spare.weight: is not used in the forward pass" in str(table)


def test_markup_in_names_is_escaped() -> None:
    model = nn.Sequential()
    model.add_module("<b>", nn.Linear(3, 4))
    model.add_module("out", nn.Linear(4, 2))
    page = inspect(model, torch.randn(2, 3))._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_an_unknown_group_is_refused_with_the_nearest_and_all_names() -> None:
    table = inspect(*ZOO["lenet"].build())
    with pytest.raises(
        KeyError,
        match=r"no group 'conv11': did you mean 'conv1'\? groups are conv1, conv2, fc1, fc2",
    ):
        table["conv11"]


@pytest.mark.parametrize("name", ["lstm", "gru", "branching"])
def test_modules_run_as_a_whole_are_called_by_their_own_names(name: str) -> None:
    said = str(inspect(*ZOO[name].build()))
    whole = {"branching": "branch"}.get(name, name)
    assert f"fc2: goes into '{whole}': " in said
    assert "opaque" not in said


def test_units_of_several_channels_are_explained() -> None:
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3, groups=4), nn.Conv2d(8, 2, 3)
    found = inspect(nn.Sequential(*layers).eval(), torch.randn(2, 3, 9, 9))
    assert found["0"].units == 4
    assert "a unit is 4 channels" in "; ".join(found["0"].obstacles)
    plain = inspect(nn.Sequential(*layers[:2], nn.Conv2d(16, 8, 3)), torch.randn(2, 3, 9, 9))
    assert "a unit is" not in "; ".join(plain["0"].obstacles)
