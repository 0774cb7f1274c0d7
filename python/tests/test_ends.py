# SPDX-License-Identifier: Apache-2.0
"""How the elastic loop ends where no step follows any more."""

from __future__ import annotations

import pytest
import torch

import phalanx
import phalanx.torch
from phalanx.torch import codec


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch):
    """A model with running statistics, its schedule, and the loop over them."""
    monkeypatch.delenv("PHALANX_SOCKET", raising=False)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loop = phalanx.torch.Elastic(model, optimizer, steps=3, global_batch=8, slots=4, data=torch.randn(64, 5), schedule=schedule)
    yield model, schedule, loop
    loop.client.close()


def test_who_is_healed_to_the_last_step_has_the_whole_model_after_the_loop(training, monkeypatch) -> None:
    model, schedule, loop = training
    entries = {e.name: e.tensor for e in loop._state.entries}

    def begin():
        entries["model.1.running_mean"].fill_(7)  # what a heal does: it writes the registered memory
        values = codec.read(loop._state.extra)
        values["objects"]["schedule0"]["last_epoch"] = 3
        codec.write(loop._state.extra, values)
        raise phalanx.Done

    monkeypatch.setattr(loop.client, "begin", begin)
    monkeypatch.setattr(loop.client, "healed", lambda: True)
    monkeypatch.setattr(loop.client, "finish", lambda: None)
    assert list(loop) == []
    assert model[1].running_mean.tolist() == [7.0] * 4
    assert schedule.last_epoch == 3


def test_a_trainer_without_a_daemon_asks_to_be_started_again(training, monkeypatch) -> None:
    _, _, loop = training

    def orphaned(*_: object, **__: object):
        raise phalanx.Orphaned("no daemon")

    with pytest.raises(SystemExit) as end:
        for step in loop:
            with step:
                monkeypatch.setattr(loop.client, "reduce", orphaned)
                for _ in step.batches():
                    pass
    assert end.value.code == phalanx.EXIT_PREEMPTED
    monkeypatch.setattr(loop.client, "begin", orphaned)
    with pytest.raises(SystemExit) as end:
        next(iter(loop))
    assert end.value.code == phalanx.EXIT_PREEMPTED
