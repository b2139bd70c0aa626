"""What does not fit together is refused before a variable is made."""

import dataclasses

import pytest

from tests.pipeline import harness, toy
from tfpipe import schedule
from tfpipe.pipeline import checks
from tfpipe.schedule.action import Action

DENSE, LOSS = toy.Dense.Params(), toy.Regression.Params()


def _layers(*params):
  return [p.Instantiate() for p in toy.named(*params)]


@pytest.mark.parametrize(
  ("ranges", "shown"),
  [
    (((0, 2),), r"\(\(0, 2\),\)"),
    (((0, 1), (2, 3)), r"\(2, 3\)"),
    (((0, 2), (1, 3)), r"\(1, 3\)"),
    (((0, 2), (2, 2), (2, 3)), r"\(2, 2\)"),
    ((), r"\(\)"),
  ],
)
def test_cells_that_do_not_hold_every_layer_once_are_refused(ranges, shown):
  with pytest.raises(ValueError, match=f"{shown}.*each of the 3 layers once, in order"):
    checks.check_layers(_layers(DENSE, DENSE, LOSS), ranges)


@pytest.mark.parametrize("name", ["", "layer_0"])
def test_layers_without_a_name_of_their_own_are_refused(name):
  layers = [*_layers(DENSE), LOSS.Copy().Set(name=name).Instantiate()]
  with pytest.raises(ValueError, match=f"layer 1 has the name {name!r}"):
    checks.check_layers(layers, ((0, 2),))


@pytest.mark.parametrize(
  ("tied_to", "dim", "message"),
  [
    ("layer_0/v", 8, "layer_1/w is tied to 'layer_0/v'.*did you mean 'layer_0/"),
    ("layer_1/w", 8, "layer_1/w is tied to 'layer_1/w', which no layer has"),
    ("layer_0/w", 4, r"\(4, 4\) is tied to layer_0/w of shape \(8, 8\)"),
  ],
)
def test_a_tied_weight_must_exist_and_fit(tied_to, dim, message):
  layers = _layers(DENSE, LOSS.Copy().Set(tied_to=tied_to, dim=dim))
  with pytest.raises(ValueError, match=message):
    checks.check_layers(layers, ((0, 2),))


def test_a_schedule_must_have_a_stage_for_each_cell():
  with pytest.raises(ValueError, match="has 3 stages, the network is cut into 2 cells"):
    checks.check_schedule(schedule.make("gpipe", 3, 2), 2)


def test_an_unsound_schedule_is_refused():
  sound = schedule.make("1f1b", 2, 2)
  first, *rest = sound.actions[0]
  for actions in (rest, [*rest, first]):
    broken = dataclasses.replace(sound, actions=(tuple(actions), sound.actions[1]))
    with pytest.raises(ValueError, match="1f1b"):
      checks.check_schedule(broken, 2)


def test_a_schedule_with_several_updates_is_refused():
  kinds = [("F", 0), ("BW", 0), ("U", 0), ("F", 1), ("BW", 1), ("U", 1)]
  actions = [Action(kind, 0, m, version=int(m and kind != "U")) for kind, m in kinds]
  stream = dataclasses.replace(
    schedule.make("gpipe", 1, 2), name="stream", actions=(tuple(actions),)
  )
  with pytest.raises(ValueError, match="schedule stream has 2 updates; one can be"):
    checks.check_schedule(stream, 1)


def test_refusals_come_before_any_variable(tf):
  params = toy.named(DENSE, LOSS.Copy().Set(tied_to="nothing"))
  with pytest.raises(ValueError, match="'nothing', which no layer has"):
    harness.make_pipeline(tf, params)
