"""The Transformers that benchmarks measure: nothing but layers, and plain SGD."""

from __future__ import annotations

from models.amoebanet.blocks import Identity
from models.transformer.block import TransformerBlock
from models.transformer.language_model import TransformerLm
from tfpipe import experiment, registry
from tfpipe.checks import check_count
from tfpipe.input.text_input import CharTextInput
from tfpipe.optimizers import SGD, Learner
from tfpipe.params import InstantiableParams, Params


class PartialLm(TransformerLm):
  """A Transformer of which only some blocks compute; the others hand their input on.

  So a stage can be measured without the others, in its place among them.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; by default no block computes."""
    p = super().Params()
    p.Define("first_layer", 0, "Number of the first block that computes.")
    p.Define("end_layer", 0, "Number of the block after the last that computes.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    first, end = (check_count(self, params, f"{n}_layer", 0) for n in ("first", "end"))
    if not first <= end <= params.num_layers:
      raise ValueError(
        f"PartialLm.end_layer = {end}: it must be at least first_layer={first} and at "
        f"most num_layers={params.num_layers}"
      )

  def Layers(self) -> list[InstantiableParams]:
    """Lists embedding, blocks and softmax."""
    p = self.params
    own = {f"layer_{i}" for i in range(p.first_layer, p.end_layer)}
    return [
      Identity.Params().Set(name=layer.name)
      if layer.cls is TransformerBlock and layer.name not in own
      else layer
      for layer in super().Layers()
    ]


@registry.Register
class Decoder(experiment.Experiment):
  """Eight layers of width 256 on 64 characters; benchmarks set other sizes."""

  TASK = TransformerLm
  NUM_LAYERS = 8
  MODEL_DIM = 256
  NUM_HEADS = 4
  VOCAB_SIZE = 128
  SEQUENCE_LENGTH = 64
  BATCH_SIZE = 16

  def Train(self) -> Params:
    """Two plays."""
    return CharTextInput.Params().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Task(self) -> Params:
    """No dropout, no positions, untied embeddings, a final norm."""
    return self.TASK.Params().Set(
      name="decoder",
      vocab_size=self.VOCAB_SIZE,
      sequence_length=self.SEQUENCE_LENGTH,
      num_layers=self.NUM_LAYERS,
      model_dim=self.MODEL_DIM,
      ff_dim=4 * self.MODEL_DIM,
      num_heads=self.NUM_HEADS,
      positions="none",
      final_norm=True,
      learner=Learner.Params().Set(optimizer=SGD.Params(), learning_rate=0.01),
    )


@registry.Register
class Partial(Decoder):
  """The same, of which only the blocks that benchmarks choose compute."""

  TASK = PartialLm
