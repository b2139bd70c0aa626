import pytest

from tfpipe.experiment import Experiment
from tfpipe.params import Params


class Digits(Experiment):
  BATCH_SIZE = 32

  def Train(self) -> Params:
    p = Params()
    p.Define("batch_size", self.BATCH_SIZE, "Examples per batch.")
    return p

  def Task(self) -> Params:
    p = Params()
    p.Define("num_classes", 10, "Number of classes.")
    return p


class DigitsLarge(Digits):
  BATCH_SIZE = 64

  def Task(self) -> Params:
    return super().Task().Set(num_classes=20)


def test_the_model_holds_name_task_and_training_input() -> None:
  model = Digits().Model()
  assert model.name == f"{__name__}.Digits"
  assert model.task == Digits().Task()
  assert model.input.batch_size == 32
  assert model.eval_input is None
  assert {"pipeline", "train"} <= set(model.GetKeys())


def test_the_evaluation_input_is_that_of_test() -> None:
  class Tested(Digits):
    def Test(self) -> Params:
      return self.Train().Set(batch_size=8)

  assert Tested().Model().eval_input.batch_size == 8


def test_a_variant_overrides_constants_and_params() -> None:
  diff = Digits().Model().TextDiff(DigitsLarge().Model())
  assert diff == (
    "? input:\n>   batch_size: 32\n<   batch_size: 64\n"
    f"> name: '{__name__}.Digits'\n< name: '{__name__}.DigitsLarge'\n"
    "? task:\n>   num_classes: 10\n<   num_classes: 20\n"
  )


def test_the_name_is_module_and_class_without_params() -> None:
  assert Digits.Name() == f"{__name__}.Digits"
  moved = type("Moved", (Digits,), {"__module__": "params.image.digits"})
  assert moved.Name() == "image.digits.Moved"


@pytest.mark.parametrize("method", ["Task", "Train", "Dev", "Test"])
def test_a_missing_method_is_named(method: str) -> None:
  class Empty(Experiment):
    pass

  message = rf"test_experiment\.Empty has no {method}\(\); define it to return Params"
  with pytest.raises(NotImplementedError, match=message):
    getattr(Empty(), method)()


@pytest.mark.parametrize("method", ["Task", "Train", "Test"])
def test_methods_must_return_params(method: str) -> None:
  wrong = type("Wrong", (Digits,), {method: lambda self: {"x": 1}})
  message = rf"Wrong\.{method}\(\) must return Params, got \{{'x': 1\}}"
  with pytest.raises(TypeError, match=message):
    wrong().Model()


def test_each_model_is_made_anew() -> None:
  experiment = Digits()
  experiment.Model().task.num_classes = 3
  assert experiment.Model().task.num_classes == 10
