"""Experiment: one class per training run, from which its Params are made.

What varies between runs is a class constant; a variant is a subclass that overrides a
constant or edits the result of `super().Task()`.
"""

from __future__ import annotations

from tfpipe import model
from tfpipe.params import Params


class Experiment:
  """Base of the experiments in params files.

  A subclass defines `Task`, `Train` and, as far as it has such data, `Dev` and `Test`:

      @registry.Register
      class DigitsSmall(experiment.Experiment):
        BATCH_SIZE = 32

        def Train(self):
          return digits.Input.Params().Set(batch_size=self.BATCH_SIZE)

        def Task(self):
          return classifier.Task.Params().Set(num_classes=10)
  """

  @classmethod
  def Name(cls) -> str:
    """Gives its name: the module, without a leading `params.`, and the class."""
    return f"{cls.__module__.removeprefix('params.')}.{cls.__name__}"

  def Task(self) -> Params:
    """Gives the Params of the task: the model, its loss and how it is trained."""
    raise self._missing("Task")

  def Train(self) -> Params:
    """Gives the Params of the input to train on."""
    raise self._missing("Train")

  def Dev(self) -> Params:
    """Gives the Params of the input to choose models by."""
    raise self._missing("Dev")

  def Test(self) -> Params:
    """Gives the Params of the input to report results on."""
    raise self._missing("Test")

  def Model(self) -> Params:
    """Gives the Params of the whole run: see `model.ModelParams`.

    An experiment that sets `pipeline` or `train` does so here, on the result of
    `super().Model()`.

    Raises:
      NotImplementedError: there is no `Task` or `Train`.
      TypeError: one of the methods returns no Params.
    """
    parts = {"Task": self.Task(), "Train": self.Train()}
    if type(self).Test is not Experiment.Test:
      parts["Test"] = self.Test()
    for method, result in parts.items():
      if not isinstance(result, Params):
        raise TypeError(f"{self.Name()}.{method}() must return Params, got {result!r}")
    return model.ModelParams(
      self.Name(), parts["Task"], parts["Train"], parts.get("Test")
    )

  def _missing(self, method: str) -> NotImplementedError:
    return NotImplementedError(
      f"{self.Name()} has no {method}(); define it to return Params"
    )
