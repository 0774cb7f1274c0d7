# SPDX-License-Identifier: Apache-2.0
"""The registered memory is the whole training state: another process that gets its bytes goes on with the same bits."""

from __future__ import annotations

import pytest
import torch

from phalanx.torch.gradients import Averaged, Layout
from phalanx.torch.state import EXTRA, Registered, StateError

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw-one-by-one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
}


def build(name: str, scaler: bool = False):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=False)
    )
    model[3].weight.data = model[3].weight.data.t().contiguous().t()  # not contiguous
    optimizer = OPTIMIZERS[name](model.parameters())
    objects = {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)}
    if scaler:
        objects["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    return model, optimizer, objects


def registered(model, optimizer, objects) -> Registered:
    return Registered(model, optimizer, objects, 0, Averaged(model).values)


def train(model, optimizer, objects, state: Registered | None, first: int, last: int) -> None:
    for i in range(first, last):
        torch.manual_seed(i)
        optimizer.zero_grad()
        loss = model.eval()(torch.randn(4, 5)).square().mean()
        scaler = objects.get("scaler")
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        objects["schedule"].step()
        if state is not None:
            state.stepped()


def bits(model, optimizer) -> list[bytes]:
    tensors = [*model.state_dict().values()]
    for p in model.parameters():
        tensors += [v for _, v in sorted(optimizer.state[p].items()) if isinstance(v, torch.Tensor)]
    return [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]


def hand_over(source: Registered, target: Registered) -> None:
    assert [(e.name, e.tensor.shape, e.tensor.dtype) for e in source.entries] == [
        (e.name, e.tensor.shape, e.tensor.dtype) for e in target.entries
    ]
    for a, b in zip(source.entries, target.entries, strict=True):
        b.tensor.copy_(a.tensor)
    target.replaced()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_registering_changes_nothing(name: str) -> None:
    plain, watched = build(name), build(name)
    state = registered(*watched)
    train(*plain, None, 0, 5)
    train(*watched, state, 0, 5)
    assert bits(*plain[:2]) == bits(*watched[:2])


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_healed_process_goes_on_with_the_same_bits(name: str, at: int) -> None:
    donor, healed = build(name), build(name)
    source, target = registered(*donor), registered(*healed)
    train(*healed, target, 50, 52)  # another past
    train(*donor, source, 0, at)
    hand_over(source, target)
    assert bits(*donor[:2]) == bits(*healed[:2])
    train(*donor, source, at, at + 4)
    train(*healed, target, at, at + 4)
    assert bits(*donor[:2]) == bits(*healed[:2])
    assert donor[2]["schedule"].state_dict() == healed[2]["schedule"].state_dict()
    for a, b in zip(source.entries, target.entries, strict=True):
        assert torch.equal(a.tensor, b.tensor), a.name


@pytest.mark.parametrize("at", [0, 3])
def test_the_loss_scaler_is_healed_also_before_it_ran(at: int) -> None:
    donor, healed = build("sgd", scaler=True), build("sgd", scaler=True)
    source, target = registered(*donor), registered(*healed)
    train(*donor, source, 0, at)
    hand_over(source, target)
    train(*donor, source, at, at + 5)
    train(*healed, target, at, at + 5)
    assert donor[2]["scaler"].get_scale() == healed[2]["scaler"].get_scale() == 8.0 * 2 ** ((at + 5) // 2)
    assert bits(*donor[:2]) == bits(*healed[:2])


def test_names_are_those_of_the_state_dict() -> None:
    model, optimizer, objects = build("adam")
    names = {e.name for e in registered(model, optimizer, objects).entries}
    assert {f"model.{n}" for n in model.state_dict()} < names
    assert "optim.state.0.weight.exp_avg" in names and EXTRA in names


def test_memory_of_the_state_is_contiguous_and_its_own() -> None:
    model, optimizer, objects = build("adam")
    seen = set()
    for e in registered(model, optimizer, objects).entries:
        assert e.tensor.is_contiguous() and e.tensor.device.type == "cpu"
        assert e.tensor.data_ptr() not in seen or e.tensor.numel() == 0
        seen.add(e.tensor.data_ptr())


def test_tied_parameters_are_registered_once() -> None:
    a = torch.nn.Linear(4, 4)
    b = torch.nn.Linear(4, 4)
    b.weight = a.weight
    model = torch.nn.Sequential(a, b)
    state = Registered(model, torch.optim.SGD(model.parameters(), lr=0.1), {}, 0, {})
    assert [e.name for e in state.entries if "weight" in e.name] == ["model.0.weight"]


def test_a_parameter_of_another_model_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(StateError, match="the model lacks"):
        Registered(model, optimizer, {}, 0, {})


def test_a_buffer_that_forward_changes_is_refused() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return x

    model = Counting()
    averaged = Averaged(model)
    model(torch.zeros(1))
    with pytest.raises(StateError, match="buffer calls is changed"):
        averaged.end_slot()


def test_a_buffer_that_forward_replaces_is_refused() -> None:
    class Following(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(1))
            self.register_buffer("cache", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.cache = x.detach()
            if x.sum() > 0:
                self.mean = 0.9 * self.mean + 0.1 * x.detach()
            return x

    model = Following()
    averaged = Averaged(model)
    model(torch.zeros(1))
    averaged.end_slot()
    model(torch.ones(1))
    with pytest.raises(StateError, match="buffer mean was replaced"):
        averaged.end_slot()


def test_a_healed_buffer_is_none_that_forward_changed() -> None:
    def make():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 3)
        model.register_buffer("mask", torch.rand(4, 3).t())  # not contiguous: kept by a copy
        averaged = Averaged(model)
        return model, averaged, Registered(model, torch.optim.SGD(model.parameters(), lr=0.1), {}, 0, averaged.values)

    (_, _, source), (model, averaged, target) = make(), make()
    hand_over(source, target)
    averaged.restored()
    averaged.end_slot()
    model.mask.add_(1)
    with pytest.raises(StateError, match="buffer mask is changed"):
        averaged.end_slot()


def test_a_model_or_optimizer_that_becomes_another_is_refused() -> None:
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        state = Registered(model, optimizer, {}, 0, {})
        state.check()
        return model, optimizer, state

    model, optimizer, state = make()
    optimizer.add_param_group({"params": list(model[1].parameters())})
    with pytest.raises(StateError, match="were added to the optimizer"):
        state.check()
    model, optimizer, state = make()
    model.to(torch.float64).to(torch.float32)
    with pytest.raises(StateError, match="0.weight has moved"):
        state.check()
    model, optimizer, state = make()
    optimizer.state[model[0].weight]["slow"] = torch.zeros(3)
    with pytest.raises(StateError, match="begun to keep slow"):
        state.check()


class _Counting(torch.optim.Optimizer):
    """Counts in a number instead of a tensor."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] = state.get("step", 0) + 1
            p.sub_(p.grad, alpha=0.1 / state["step"])


def test_going_back_to_the_start_forgets_numbers_too() -> None:
    def make():
        model = torch.nn.Linear(3, 3)
        optimizer = _Counting(model.parameters())
        return model, optimizer, Registered(model, optimizer, {}, 0, {})

    (_, _, source), (model, optimizer, target) = make(), make()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    target.stepped()
    hand_over(source, target)
    assert not optimizer.state, optimizer.state


def test_a_parameter_that_begins_to_train_later_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    layout = Layout(list(model[1].parameters()), [], list(model[0].parameters()))
    row = torch.zeros(layout.elements)
    model.requires_grad_(True)
    model[0].requires_grad_(False)
    model(torch.ones(3)).sum().backward()
    layout.collect(row.data_ptr())
    model[0].requires_grad_(True)
    model(torch.ones(3)).sum().backward()
    with pytest.raises(StateError, match="did not require gradients"):
        layout.collect(row.data_ptr())
