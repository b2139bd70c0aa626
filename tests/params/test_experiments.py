"""Every registered experiment is whole: it plans, and its Params can be stored."""

import dataclasses
import inspect

import pytest

from tfpipe import experiment, plan, registry

# Those of tests are registered too, once such a test has been imported.
NAMES = [name for name in registry.List() if not name.startswith("tests.")]


def test_there_are_experiments_of_images_and_of_text():
  assert {name.split(".")[0] for name in NAMES} == {"image", "lm"}


@pytest.mark.parametrize("name", NAMES)
def test_it_plans_with_its_own_cells_and_micro_batches(name):
  params = registry.Get(name)().Model()
  made = plan.make(params)
  assert len(made.cells) == params.pipeline.num_partitions
  each, rest = divmod(params.pipeline.num_micro_batches, params.pipeline.num_replicas)
  assert (made.schedule.num_micro_batches, rest) == (each, 0)
  assert made.cells[0][0] == 0
  assert made.cells[-1][1] == len(made.costs)
  declared = {}
  for layer in params.task.Instantiate().Layers():
    for path, weight in layer.Instantiate().weights().items():
      assert f"{layer.name}/{path}" not in declared
      declared[f"{layer.name}/{path}"] = weight
  tied = [weight.tied_to for weight in declared.values() if weight.tied_to]
  assert set(tied) <= set(declared)
  own = [weight for weight in declared.values() if not weight.tied_to]
  assert sum(cost.param_bytes for cost in made.costs) == 4 * sum(map(_size, own))
  trained = [weight for weight in own if weight.trainable]
  assert sum(cost.param_count for cost in made.costs) == sum(map(_size, trained)) > 0
  assert all(cost.flops > 0 for cost in made.costs if cost.param_count)


def _size(weight):
  size = 1
  for dim in weight.shape:
    size *= dim
  return size


@pytest.mark.parametrize("name", NAMES)
def test_its_params_come_back_from_their_text(name):
  params = registry.Get(name)().Model()
  text = params.ToText()
  fresh = registry.Get(name)().Model()
  fresh.Set(**{"train.max_steps": 123, "pipeline.num_partitions": 77})
  assert fresh.FromText(text) == params
  assert fresh.ToText() == text


@pytest.mark.parametrize("name", NAMES)
def test_it_is_documented_and_named_after_its_place(name):
  cls = registry.Get(name)
  assert issubclass(cls, experiment.Experiment)
  assert cls.Name() == name == registry.Get(name)().Model().name
  assert len(inspect.getdoc(cls) or "") > 20
  assert "Experiment" not in (inspect.getdoc(cls) or "")[:10]


def test_every_evaluation_is_one_ordered_pass_over_everything():
  inputs = {name: registry.Get(name)().Model().eval_input for name in NAMES}
  assert any(inputs.values())
  for name, p in inputs.items():
    if p is not None:
      assert (p.shuffle, p.repeat, p.last_batch) == (False, False, "pad"), name


@pytest.mark.parametrize("name", ["image.fashion_mnist.AmoebaNetTiny"])
def test_the_weights_do_not_depend_on_the_cut(name):
  counts = set()
  for k in range(1, 8):
    params = registry.Get(name)().Model().Set(**{"pipeline.num_partitions": k})
    costs = plan.make(params).costs
    counts.add(tuple(dataclasses.astuple(cost)[:6] for cost in costs))
  assert len(counts) == 1
