"""Character models of the speeches in Shakespeare's plays, each a text of its own."""

from __future__ import annotations

from params.lm.shakespeare import Char
from tfpipe import registry
from tfpipe.input.bucketed_input import BucketedTextInput
from tfpipe.input.document_input import PackedTextInput
from tfpipe.params import Params


@registry.Register
class Packed(Char):
  """Speeches, as many in a row as fit, each of which sees only itself."""

  def Train(self) -> Params:
    """The speeches of two plays."""
    return PackedTextInput.Params().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Test(self) -> Params:
    """The speeches of a whole other play."""
    return PackedTextInput.EvalParams().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Task(self) -> Params:
    """The network of `lm.shakespeare.Char`, for packed rows."""
    return super().Task().Set(packed=True)


@registry.Register
class Bucketed(Char):
  """Speeches, one in a row, in batches of rows of 32, 64 or 128 characters."""

  BUCKETS = (32, 64)

  def Train(self) -> Params:
    """The speeches of two plays."""
    return BucketedTextInput.Params().Set(
      batch_size=self.BATCH_SIZE,
      seq_len=self.SEQUENCE_LENGTH,
      bucket_lengths=self.BUCKETS,
    )

  def Test(self) -> Params:
    """The speeches of a whole other play."""
    return BucketedTextInput.EvalParams().Set(
      batch_size=self.BATCH_SIZE,
      seq_len=self.SEQUENCE_LENGTH,
      bucket_lengths=self.BUCKETS,
    )
