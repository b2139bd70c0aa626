"""A task: the layers of a network, the batch fields they read, and how they learn."""

from __future__ import annotations

from tfpipe.optimizers.learner import Learner
from tfpipe.params import InstantiableParams


class Task:
  """A network as a sequence of layers (Lingvo's BaseTask, for sequences).

  Subclasses add their Params and define `Layers`. Nothing here touches a device.
  """

  # Batch fields that enter the first layer; with several, FProp gets one argument each.
  INPUT_FIELDS: tuple[str, ...] = ()

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of this task with its defaults."""
    p = InstantiableParams(cls)
    p.Define("name", "", "Name of the task.")
    p.Define("learner", Learner.Params(), "How the weights are updated.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    self.params = params.Copy()

  def Layers(self) -> list[InstantiableParams]:
    """Lists the layers in order; the last one returns the metrics, `loss` among them.

    Every layer has a name of its own: weights, checkpoints, seeds and start values go
    by it.
    """
    raise NotImplementedError(f"{type(self).__name__} does not define Layers")
