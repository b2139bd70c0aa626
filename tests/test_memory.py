import itertools

import pytest

from tfpipe import memory, schedule
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.memory import LayerState

INSIDE, BORDER = 100, 8
STATE = LayerState()


def cost(name, inside=INSIDE, border=BORDER):
  out = ArraySpec((border,), "int8")
  return LayerCost(name, 1, 0, 0, 0, inside, out)


def chain(num_layers, inside=INSIDE, border=BORDER):
  return [cost(f"layer_{i}", inside, border) for i in range(num_layers)]


def equal(num_layers, num_stages):
  size = num_layers // num_stages
  return tuple((i * size, (i + 1) * size) for i in range(num_stages))


def predict(made, num_layers=None, costs=None, states=None, remat=None, fields=None):
  """Predicts for equal stages: one layer each unless told."""
  costs = costs or chain(num_layers or made.num_stages)
  return memory.predict(
    costs,
    states or [STATE] * len(costs),
    equal(len(costs), made.num_stages),
    made,
    fields or {},
    remat,
  )


def activations(rows):
  """Gives the sums of stash and recomputed of each device."""
  totals = {}
  for row in rows:
    totals[row.device] = totals.get(row.device, 0) + row.activations
  return [totals[device] for device in sorted(totals)]


def border(device):
  return BORDER if device else 0  # the first stage's input is the batch


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_gpipe_keeps_all_micro_batches_and_with_remat_their_inputs(k, m):
  # Three layers a stage: between them are two more borders.
  inside = 3 * INSIDE + 2 * BORDER
  rows = predict(schedule.make("gpipe", k, m), 3 * k)
  assert [row.stash for row in rows] == [m * (inside + border(d)) for d in range(k)]
  assert all(row.recomputed == 0 for row in rows)
  rows = predict(schedule.make("gpipe", k, m, remat=True), 3 * k)
  assert [row.stash for row in rows] == [m * border(d) for d in range(k)]
  assert [row.recomputed for row in rows] == [inside] * k


def test_remat_needs_what_the_paper_says():
  # GPipe, section 2.3: O(N + L/K · N/M). With N examples, of which a border needs one
  # byte each and a layer two: N + (L/K)·2·(N/M), and L/K - 1 borders inside.
  for n, k, m in itertools.product([64, 128], [2, 4], [8, 16]):
    num_layers = 8
    part = n // m
    costs = chain(num_layers, inside=2 * part, border=part)
    rows = predict(schedule.make("gpipe", k, m, remat=True), costs=costs)
    in_a_stage = num_layers // k
    inside = in_a_stage * 2 * part + (in_a_stage - 1) * part
    assert activations(rows)[1:] == [n + inside] * (k - 1)


@pytest.mark.parametrize(
  ("name", "in_flight"),
  [
    ("1f1b", lambda k, m, d: min(m, k - d)),
    ("eager_1f1b", lambda k, m, d: min(m, 2 * (k - d) - 1)),
    ("zb_h1", lambda k, m, d: k),
    ("zb_h2", lambda k, m, d: 2 * k - 1),
  ],
)
def test_what_is_kept_is_what_the_schedule_has_in_flight(name, in_flight):
  for k, m in [(2, 4), (4, 8), (4, 16)]:
    rows = predict(schedule.make(name, k, m))
    assert [row.stash for row in rows] == [
      in_flight(k, m, d) * (INSIDE + border(d)) for d in range(k)
    ]
    rows = predict(schedule.make(name, k, m, remat=True))
    if name.endswith("1f1b"):  # nothing is kept until a W
      assert [row.stash for row in rows] == [
        in_flight(k, m, d) * border(d) for d in range(k)
      ]
      assert [row.recomputed for row in rows] == [INSIDE] * k


def test_interleaved_keeps_more_stages_of_half_the_size():
  for k, m in [(2, 4), (4, 8)]:
    made = schedule.make("interleaved", k, m, stages_per_device=2)
    rows = predict(made, costs=chain(2 * k, border=0))
    # schedules.md, section 2, in stages: (V - 1)K + 2(K - 1 - d) + 1.
    assert activations(rows) == [INSIDE * (k + 2 * (k - 1 - d) + 1) for d in range(k)]


def every_schedule():
  for name in schedule.NAMES:
    for k, m in itertools.product((1, 2, 3, 4), (1, 2, 4, 6, 8, 12)):
      for remat in (False, True):
        try:
          yield schedule.make(name, k, m, remat)
        except ValueError:
          continue  # this schedule is for other numbers


def test_equal_stages_agree_with_the_count_of_every_schedule():
  number = 0
  for made in every_schedule():
    number += 1
    unit = made.num_stages // made.num_devices
    counted = schedule.in_flight(made)
    # Only what is inside, then only the inputs.
    rows = predict(made, costs=chain(made.num_stages, inside=1, border=0))
    assert activations(rows) == [unit * kept for kept in counted.kept], made.name
    if all(action.kind != "W" for actions in made.actions for action in actions):
      rows = predict(made, costs=chain(made.num_stages, inside=0, border=1))
      held = activations(rows)
      for device, count in enumerate(counted.without_backward):
        first = any(pipe[0] == device for pipe in made.placement)
        assert held[device] <= unit * count if first else held[device] == unit * count
  assert number > 300


def test_another_kind_of_remat_is_predicted_as_if_it_were_scheduled():
  for made in every_schedule():
    if made.name.endswith("+R"):
      continue
    name = made.name
    with_remat = schedule.make(name, made.num_devices, made.num_micro_batches, True)
    assert predict(made, remat="cell") == predict(with_remat), name
    assert predict(with_remat, remat="none") == predict(made), name
    assert predict(with_remat, remat="cell") == predict(with_remat), name


def test_remat_of_layers_keeps_borders_and_the_inside_of_the_largest_layer():
  costs = [cost("a", 70), cost("b", 50), cost("c", 30), cost("d", 90)]
  rows = predict(schedule.make("1f1b", 2, 4), costs=costs, remat="layer")
  # Device 0: two micro-batches with one border inside; device 1: one, and its input.
  assert [row.stash for row in rows] == [2 * BORDER, 2 * BORDER]
  assert [row.recomputed for row in rows] == [70, 90]


def test_remat_of_layers_keeps_all_layers_between_the_parts_of_a_backward():
  # 0: F0 B0 W0; the inside of both layers is there from B to W.
  costs = [cost("a", 70), cost("b", 50)]
  (row,) = predict(schedule.make("zb_h1", 1, 1), costs=costs, remat="layer")
  assert (row.stash, row.recomputed) == (BORDER, 120)


def test_between_b_and_w_are_the_gradients_that_w_reads():
  weighted = LayerCost("dense", 1, 0, 3, 12, INSIDE, ArraySpec((BORDER,), "int8"))
  costs = [weighted, cost("relu", border=5)]
  # One device: F B W, with the gradient at the output of the layer that has weights.
  (row,) = predict(schedule.make("zb_h1", 1, 1), costs=costs)
  assert (row.stash, row.gradients) == (2 * INSIDE + BORDER, BORDER)
  assert row.activations == 2 * INSIDE + 2 * BORDER
  # B and W at once: what is between them is gone before the next layer.
  (row,) = predict(schedule.make("1f1b", 1, 1), costs=costs)
  assert row.gradients == 0
  # ZB-H1's last device of two has a W late: at F2 the gradients of micro-batch 0 wait.
  rows = predict(schedule.make("zb_h1", 2, 4), costs=[weighted, weighted])
  counted = schedule.in_flight(schedule.make("zb_h1", 2, 4))
  assert [row.stash // INSIDE for row in rows] == list(counted.kept)
  assert rows[1].gradients > 0


def test_devices_that_are_the_same_hold_all_of_theirs():
  rows = predict(schedule.make("gpipe", 3, 2), costs=chain(3, border=0))
  assert memory.of_devices(rows) == [2 * INSIDE] * 3
  assert memory.of_devices(rows, (0, 1, 0)) == [4 * INSIDE, 2 * INSIDE, 4 * INSIDE]
  assert memory.most_activations(rows, (0, 1, 0)) == 4 * INSIDE


def test_the_moment_of_the_whole_device_counts_not_that_of_each_stage():
  # Stage 0 and stage 1 on one device, in the order F0 F1 B1 B0: both are kept at once.
  made = schedule.make("interleaved", 1, 1, stages_per_device=2)
  rows = predict(made, costs=[cost("a", 70), cost("b", 50)])
  assert [(row.stage, row.stash) for row in rows] == [(0, 70), (1, 50 + BORDER)]
  assert memory.of_devices(rows) == [120 + BORDER]
  assert memory.most_activations(rows) == 120 + BORDER


def test_most_activations_may_be_there_when_the_device_holds_less():
  # F0 F1 BW0 BW1: both micro-batches until BW0; at BW1 one, and its new gradients.
  (row,) = predict(schedule.make("gpipe", 1, 2), states=[LayerState(gradients=500)])
  assert (row.activations, row.new_gradients) == (INSIDE, 500)
  assert row.device_activations == memory.most_activations([row]) == 2 * INSIDE


def test_state_is_added_up_and_the_batch_lies_where_it_is_read():
  states = [
    LayerState(weights=10, gradients=9, slots=20, averages=5, fields=frozenset("x")),
    LayerState(weights=1, gradients=1, slots=2, averages=3, sums=4),
    LayerState(weights=100, fields=frozenset("xy")),
  ]
  made = schedule.make("gpipe", 1, 4)
  (row,) = memory.predict(
    chain(3), states, ((0, 3),), made, {"x": 7, "y": 1, "unread": 1000}
  )
  assert (row.weights, row.slots, row.averages) == (111, 22, 8)
  assert row.accumulators == 10 + 4
  assert row.batch == 4 * (7 + 1)
  assert row.state == 111 + 22 + 8 + 14
  # All four micro-batches are kept when the first one goes back, whose gradients are
  # the sums; with the second, what it has less is more than its own gradients.
  assert row.new_gradients == 0
  assert row.total == row.state + row.batch + row.stash + row.recomputed


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
@pytest.mark.parametrize(("k", "m"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 8), (4, 8)])
def test_gradients_of_all_but_the_first_micro_batch_are_there_beside_their_sums(
  name, k, m
):
  states = [LayerState(gradients=9)] * k
  rows = predict(schedule.make(name, k, m), costs=chain(k, 20, 0), states=states)
  for device, row in enumerate(rows):
    in_flight = min(m, k if name == "zb_h1" else k - device)
    assert row.stash == 20 * in_flight
    # If there are more, as many are in flight at the second backward as at the first.
    assert row.new_gradients == (9 if m > in_flight else 0), device
    assert row.total == row.state + row.stash + row.new_gradients
  gpipe = predict(schedule.make("gpipe", k, m), costs=chain(k, 20, 0), states=states)
  # What the first backward frees is more than what the second one has besides.
  assert [row.new_gradients for row in gpipe] == [0] * k


def test_the_first_gradients_are_the_sums_whatever_kind_of_backward_makes_them():
  whole_first = (
    schedule.Action("F", 0, 0),
    schedule.Action("F", 0, 1),
    schedule.Action("BW", 0, 0),
    schedule.Action("B", 0, 1),
    schedule.Action("W", 0, 1),
    schedule.Action("U", 0, 0),
  )
  made = schedule.Schedule("whole first", 1, 2, ((0,),), (whole_first,))
  schedule.validate(made)
  states = [LayerState(gradients=30)]
  (row,) = predict(made, costs=chain(1, 20, 0), states=states)
  # With W: one micro-batch and its gradients, more than two of them with BW.
  assert (row.stash, row.new_gradients) == (20, 30)


def test_chimera_has_weights_and_sums_twice_but_slots_once():
  state = LayerState(
    weights=10, gradients=9, slots=20, averages=5, sums=3, fields=frozenset("x")
  )
  made = schedule.make("chimera", 2, 4)
  rows = predict(made, states=[state] * 2, fields={"x": 1})
  assert [(row.device, row.pipe, row.stage) for row in rows] == [
    (0, 0, 0),
    (0, 1, 1),
    (1, 0, 1),
    (1, 1, 0),
  ]
  for row in rows:
    assert row.weights == 10
    assert (row.slots, row.averages) == ((0, 0) if row.pipe else (20, 5))
    assert row.accumulators == (9 if row.pipe else 12)
    assert row.batch == 2  # half of the micro-batches go each way


def test_weights_of_a_stage_on_another_device_are_copied():
  owner = LayerState(weights=40, gradients=40)
  user = LayerState(gradients=40, tied={"layer_0": 40})
  for k, copied in ((1, 0), (2, 40)):
    rows = predict(schedule.make("gpipe", k, 2), costs=chain(2), states=[owner, user])
    assert sum(row.weights for row in rows) == 40 + copied
    assert sum(row.accumulators for row in rows) == 80


def test_a_forward_of_two_micro_batches_keeps_both():
  made = schedule.make("chimera_doubling", 2, 8)
  assert any(a.size == 2 for actions in made.actions for a in actions)
  rows = predict(made, costs=chain(2, inside=1, border=0))
  assert activations(rows) == list(schedule.in_flight(made).kept)
