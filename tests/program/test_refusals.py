"""Bad flags and Params: each is refused before TensorFlow starts."""

import os
import re

import pytest

from tests.program import command
from tests.program.training import IMAGE, TEXT
from tfpipe import trainer

NO_TEST = "tests.program.tiny.NoTest"
AMOEBANET = "image.fashion_mnist.AmoebaNetTiny"
CHAR = "lm.shakespeare.Char"

# Arguments for each experiment, and what the message must say.
FLAGS = [
  ("--num_partition=2", r"Unknown command line flag 'num_partition'.*num_partitions"),
  ("--num_partitions=two", r"--num_partitions=two: invalid literal|two"),
  ("--num_partitions=2.5", r"--num_partitions=2.5"),
  ("--mode=trian", r"--mode=trian: must be one of train_and_eval, .*mean 'train'\?"),
  ("--mode=", r"--mode=: must be one of train_and_eval, "),
  ("max_steps=3", r"unexpected arguments: max_steps=3"),
  ("--set=train.max_steps", r"--set 'train.max_steps': must be key.path=value"),
  ("--set=", r"--set '': must be key.path=value"),
  ("--set==3", r"'' is not a path of the form"),
  ("--set=train..max_steps=3", r"'train..max_steps' is not a path of the form"),
  ("--set=max_steps=3", r"has no parameter 'max_steps'; known: .*train"),
  ("--set=train.max_step=3", r"train.max_step: train has .*; did you mean 'max_steps'"),
  ("--set=pipline.remat=cell", r"no parameter 'pipline'; did you mean 'pipeline'\?"),
  ("--set=train=3", r"train is a Params; set one of its keys: max_steps, .*got '3'"),
  ("--set=train.max_steps.x=3", r"train.max_steps is 6, no Params, and has no 'x'"),
]
PIPELINE = [
  ("--num_partitions=0", r"pipeline.num_partitions=0: must be a whole .* at least 1"),
  ("--num_partitions=-1", r"pipeline.num_partitions=-1: must be a whole number, at"),
  (
    "--num_partitions=6",
    r"pipeline.num_partitions=6: must be at most the .*, 5",
  ),
  ("--set=pipeline.num_partitions=True", r"num_partitions takes an int; got 'True'"),
  ("--set=pipeline.num_partitions=None", r"num_partitions takes an int; got 'None'"),
  ("--num_micro_batches=0", r"pipeline.num_micro_batches=0: must be .* at least 1"),
  (
    "--num_micro_batches=3",
    r"micro_batches=3 does not divide input.batch_size=8; .* 2",
  ),
  ("--num_micro_batches=16", r"num_micro_batches=16 does not divide .*that does is 8"),
  ("--schedule=gpip", r"pipeline.schedule='gpip': must be one of.*mean 'gpipe'\?"),
  ("--schedule=", r"pipeline.schedule='': must be one of gpipe, 1f1b"),
  ("--schedule=GPipe", r"pipeline.schedule='GPipe': must be .*did you mean 'gpipe'\?"),
  ("--remat=cells", r"pipeline.remat='cells': must be one of none.*mean 'cell'\?"),
  ("--set=pipeline.remat=None", r"pipeline.remat takes a str; got None; the word is"),
  ("--set=pipeline.xla=maybe", r"pipeline.xla takes a bool .*; got 'maybe'"),
  ("--devices=gpus", r"devices='gpus': 'gpus' is not a device .*did you mean 'gpu'\?"),
  ("--devices=", r"pipeline.devices='': '' is not a device name such as 'GPU:0'"),
  ("--devices=GPU", r"'GPU' is not a device name such as 'GPU:0'.*mean 'gpu'\?"),
  ("--devices=CPU:0", r"devices='CPU:0' names 1 devices; the schedule needs 2"),
  ("--devices=CPU:0,CPU:1,CPU:2", r"names 3 devices; the schedule needs 2"),
  ("--devices=CPU:0,", r"pipeline.devices='CPU:0,': '' is not a device name"),
  ("--devices=CPU:0,CPU:x", r"'CPU:x' is not a device name"),
  ("--devices=0,1", r"pipeline.devices='0,1': '0' is not a device name"),
  ("--set=pipeline.lengths=(1,2,2)", r"lengths=\(1, 2, 2\): must be empty or hold a"),
  ("--set=pipeline.lengths=(2,2)", r"lengths \[2, 2\] add up to 4, but there are 5"),
  ("--set=pipeline.lengths=(5,0)", r"pipeline.lengths=\(5, 0\): must .* at least 1"),
  ("--set=pipeline.lengths=(6,-1)", r"pipeline.lengths=\(6, -1\): must .* at least 1"),
  ("--set=pipeline.lengths=(True,4)", r"pipeline.lengths=\(True, 4\): must be empty"),
  ("--set=pipeline.lengths=(2.5,2.5)", r"pipeline.lengths=\(2.5, 2.5\): must be empty"),
  ("--set=pipeline.lengths=('a','b')", r"pipeline.lengths=\('a', 'b'\): must be empty"),
  ("--set=pipeline.lengths=5", r"pipeline.lengths takes a value of type tuple; got 5"),
]
TRAIN = [
  ("--max_steps=-1", r"train.max_steps=-1: must be a whole number, at least 0"),
  ("--set=train.max_steps=1e3", r"train.max_steps takes an int; got '1e3'"),
  ("--set=train.seed=-1", r"train.seed=-1: must be a whole number, at least 0"),
  ("--set=train.seed=x", r"train.seed takes an int; got 'x'"),
  ("--set=train.log_interval_steps=0", r"log_interval_steps=0: must be .* at least 1"),
  ("--set=train.save_interval_steps=0", r"save_interval_steps=0: must .* at least 1"),
  ("--set=train.keep_checkpoints=0", r"train.keep_checkpoints=0: must .* at least 1"),
  ("--set=train.eval_interval_steps=-1", r"eval_interval_steps=-1: must .* at least 0"),
]
INPUT = [
  ("--set=input.batch_size=0", r"batch_size must be an integer of at least 1; got 0"),
  (
    "--set=input.batch_size=9",
    r"num_micro_batches=2 does not divide input.batch_size=9",
  ),
  ("--set=eval_input.batch_size=5", r"=2 does not divide eval_input.batch_size=5"),
  ("--set=input.split=tset", r"split must be one of 'train', 'test'; .*mean 'test'\?"),
  ("--set=input.seed=-1", r"seed must be an integer of at least 0 .*; got -1"),
  ("--set=input.shuffle=maybe", r"input.shuffle takes a bool .*; got 'maybe'"),
  ("--set=input.last_batch=padd", r"last_batch must be one of .*mean 'pad'\?"),
  ("--set=eval_input.repeat=true", r"eval_input.repeat=True: must be False"),
  ("--set=input.image_size=4", r"block_0.in_dim=9 does not fit \(4, 4, 4, 1\)"),
  ("--set=input.channels=2", r"channels must be one of 1, 3; got 2"),
  ("--set=input.num_classes=8", r"task.num_classes=7: must be at least the 8 of input"),
  ("--set=eval_input.num_classes=8", r"=7: must be at least the 8 of eval_input"),
  ("--set=input.cls=type/builtins/dict", r"input=<class 'dict'>: must be the Params"),
  ("--set=input.cls=type/tfpipe.input.text_input/CharTextInput", r"CharTextInput"),
  ("--set=input.cls=type/tfpipe.input.text_input/CharText", r"did you mean 'CharText"),
  ("--set=input.cls=3", r"input.cls takes a value of type class or function; got 3"),
  ("--set=task.cls=type/tfpipe.task/Task", r"Task does not define Layers"),
  ("--set=task.cls=type/builtins/int", r"task=<class 'int'>: must be the Params of a"),
]
LEARNER = [
  (
    "learning_rate=-1",
    r"Learner.learning_rate = -1.0: it must be a number in \[0, inf",
  ),
  (
    "learning_rate=nan",
    r"Learner.learning_rate = nan: it must be a number in \[0, inf",
  ),
  (
    "learning_rate=inf",
    r"Learner.learning_rate = inf: it must be a number in \[0, inf",
  ),
  ("learning_rate=fast", r"task.learner.learning_rate takes a float; got 'fast'"),
  ("learning_rte=1", r"no parameter 'learning_rte'; did you mean 'learning_rate'\?"),
  ("lr_schedule=3", r"Learner.lr_schedule = 3: it must be the Params of a class"),
  ("optimizer=Adam", r"task.learner.optimizer is a Params; set one of its keys: cls"),
  ("optimizer.momentum=1", r"Momentum.momentum = 1.0: it must be a number in \[0, 1\)"),
  ("optimizer.nesterov=2", r"optimizer.nesterov takes a bool .*; got '2'"),
  ("clip_gradient_norm_to_value=-1", r"norm_to_value = -1.0: it must be a number in"),
  ("weight_decay_l2=-0.1", r"Learner.weight_decay_l2 = -0.1: it must be a number in"),
  ("ema_decay=1", r"Learner.ema_decay = 1.0: it must be a number in \[0, 1\)"),
  ("nonfinite=stopp", r"must be one of 'stop', 'skip'; did you mean 'stop'\?"),
  ("max_skips=-1", r"Learner.max_skips = -1: it must be an integer of at least 0"),
  ("accumulate_steps=0", r"accumulate_steps = 0: it must be an integer of at least 1"),
]
NETWORKS = [
  (AMOEBANET, "genotype=amoebanet", r"genotype = 'amoebanet': .*mean 'amoebanet_"),
  (AMOEBANET, "num_cells=2", r"AmoebaNet.num_cells = 2: .* at least 3"),
  (AMOEBANET, "num_filters=18", r"AmoebaNet.num_filters = 18: it must be "),
  (AMOEBANET, "num_filters=0", r"AmoebaNet.num_filters = 0: .* at least 4"),
  (AMOEBANET, "num_classes=5", r"task.num_classes=5: must be at least the 10 of input"),
  (AMOEBANET, "channels=3", r"3.*\b1\b|\b1\b.*3"),
  (AMOEBANET, "image_size=32", r"image_size=32"),
  (AMOEBANET, "stem=big", r"AmoebaNet.stem = 'big': it must be one of"),
  (AMOEBANET, "stem_filters=0", r"AmoebaNet.stem_filters = 0: .* at least 1"),
  (AMOEBANET, "dropout_keep=0", r"dropout_keep = 0.0: it must be a number in \(0, 1\]"),
  (AMOEBANET, "drop_path_keep=1.5", r"drop_path_keep = 1.5: it must be a number in"),
  (AMOEBANET, "drop_path_steps=0", r"total_steps = 0: .*at least 1|drop_path_steps"),
  (AMOEBANET, "drop_path_version=v2", r"drop_path_version = 'v2': it must be one of"),
  (AMOEBANET, "label_smoothing=1", r"label_smoothing = 1.0: it must be a number in"),
  (
    AMOEBANET,
    "norm.decay=2",
    r"BatchNorm.decay = 2.0: it must be a number in \[0, 1\]",
  ),
  (AMOEBANET, "norm.epsilon=0", r"BatchNorm.epsilon = 0.0: it must be a number in"),
  (AMOEBANET, "aux_weight=-1", r"aux_weight = -1.0: it must be a number in \(0, inf\)"),
  (AMOEBANET, "aux_head=2", r"task.aux_head takes a bool .*; got '2'"),
  (CHAR, "num_heads=3", r"num_heads=3 does not divide model_dim=128; .* does"),
  (CHAR, "model_dim=0", r"TransformerLm.model_dim = 0: it must be an .* at least 1"),
  (CHAR, "num_layers=0", r"TransformerLm.num_layers = 0: it must be .* at least 1"),
  (CHAR, "vocab_size=96", r"task.vocab_size=96: must be at least the 97 of input"),
  (CHAR, "sequence_length=64", r"max_length=64, but ids are \(4, 128\)"),
  (CHAR, "activation=rely", r"activation = 'rely': .*did you mean 'relu'\?"),
  (CHAR, "positions=sinus", r"positions = 'sinus': .*did you mean 'sinusoid'\?"),
  (CHAR, "dropout_keep_prob=0", r"keep_prob = 0.0: it must be a number in \(0, 1\]"),
  (CHAR, "logits_abs_max=-1", r"logits_abs_max = -1.0: it must be a number in"),
  (CHAR, "label_smoothing=-1", r"label_smoothing = -1.0: it must be a number in"),
]
TABLE = [
  *((IMAGE, (argument,), message) for argument, message in FLAGS),
  *((IMAGE, (argument,), message) for argument, message in PIPELINE),
  *((IMAGE, (argument,), message) for argument, message in TRAIN),
  *((IMAGE, (argument,), message) for argument, message in INPUT),
  *((IMAGE, (f"--set=task.learner.{a}",), message) for a, message in LEARNER),
  *((name, (f"--set=task.{a}",), message) for name, a, message in NETWORKS),
  # The evaluation input does not fit: known before the training, not after it.
  (CHAR, ("--set=eval_input.seq_len=256",), r"max_length=128, but ids are \(4, 256\)"),
  (NO_TEST, ("--mode=eval",), r"NoTest has no evaluation input \(Test\)"),
  (NO_TEST, ("--set=eval_input=5",), r"eval_input=5: must be the Params of a class"),
  (
    NO_TEST,
    ("--set=train.eval_interval_steps=2",),
    r"eval_interval_steps=2: must be 0",
  ),
  # Contradictions.
  (
    IMAGE,
    ("--num_partitions=2", "--set=pipeline.num_partitions=3"),
    r"pipeline.num_partitions is set twice: to 3 and to 2",
  ),
  (
    IMAGE,
    ("--set=train.max_steps=3", "--set=train.max_steps=4"),
    r"train.max_steps is set twice: to 3 and to 4",
  ),
  (
    IMAGE,
    ("--set=pipeline.lengths=(2,3)", "--num_partitions=3"),
    r"pipeline.lengths=\(2, 3\): must be empty or hold .* num_partitions=3 cells",
  ),
  (
    IMAGE,
    ("--set=task.learner.ema_decay=0", "--set=task.learner.ema_ramp=1"),
    r"ema_r",
  ),
  # Names of experiments.
  ("tests.program.tiny.Imag", (), r"no experiment .*tests.program.tiny.Image"),
  (
    "lm.shakespear.Char",
    (),
    r"no experiment 'lm.shakespear.Char'; nearest are: lm.shak",
  ),
  ("lm.shakespeare.char", (), r"no experiment 'lm.shakespeare.char'; .*speare.Char"),
  ("Char", (), r"no experiment 'Char'; "),
  ("", (), r"--model is missing; it names an experiment"),
  ("tests.program.tiny.Block", (), r"tiny.Block is no registered experiment; decorate"),
  ("tests.program.tiny.NoTask", (), r"NoTask has no Task\(\); define it"),
]


@pytest.fixture(autouse=True)
def tensorflow_must_not_start(monkeypatch):
  def refuse(*arguments):
    raise AssertionError("TensorFlow was started")

  monkeypatch.setattr(trainer, "Run", refuse)


@pytest.mark.parametrize(("name", "arguments", "message"), TABLE)
def test_what_is_bad_is_refused_by_name_before_tensorflow_starts(
  tmp_path, name, arguments, message
):
  found = command.refusal(f"--model={name}", f"--logdir={tmp_path}", *arguments)
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


def test_the_table_is_long():
  assert len(TABLE) >= 60


@pytest.mark.parametrize("mode", ["plan", "inspect"])
def test_plan_and_inspect_refuse_what_training_refuses(mode):
  for argument, message in (*PIPELINE, *TRAIN, *INPUT):
    found = command.refusal(f"--model={IMAGE}", f"--mode={mode}", argument)
    assert re.search(message, found), found


@pytest.mark.parametrize("mode", ["plan", "inspect"])
def test_logdir_is_refused_where_it_has_no_effect(tmp_path, mode):
  arguments = (f"--model={TEXT}", f"--logdir={tmp_path}", f"--mode={mode}")
  assert f"--logdir has no effect with --mode={mode}" in command.refusal(*arguments)


@pytest.mark.parametrize("mode", ["train_and_eval", "train", "eval"])
def test_logdir_is_required_where_there_is_something_to_save_or_load(mode):
  arguments = (f"--model={TEXT}", f"--mode={mode}")
  assert f"--logdir is missing; --mode={mode} needs a" in command.refusal(*arguments)


@pytest.mark.parametrize("rest", ["", "/below"])
def test_a_logdir_that_is_a_file_or_below_one_is_refused(tmp_path, rest):
  (tmp_path / "file").write_text("precious")
  logdir = f"--logdir={tmp_path}/file{rest}"
  found = command.refusal(f"--model={TEXT}", logdir)
  assert found == f"error: {logdir}: {tmp_path}/file is a file, not a folder"
  assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("rest", ["", "/below"])
def test_a_logdir_that_cannot_be_written_is_refused(tmp_path, rest):
  tmp_path.chmod(0o500)
  found = command.refusal(f"--model={TEXT}", f"--logdir={tmp_path}{rest}")
  assert f"{tmp_path} is not writable" in found
