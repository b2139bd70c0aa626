"""Bad values of fields; each message must say the field, the value, what is allowed."""

from __future__ import annotations

from tests.program.training import IMAGE, TEXT

AMOEBANET = "image.fashion_mnist.AmoebaNetTiny"
CHAR = "lm.shakespeare.Char"
PAPER = "image.paper.AmoebaNetB18x512"
_NUMBER = "it must be a number in"
_INTEGER = "it must be an integer of at least"
_BOOL = r"takes a bool \(true/false, yes/no, on/off, 1/0\); got"
_NOBODY = r": ~nobody\.here must be the home folder of a user of this machine$"
# Of AmoebaNetTiny, on pictures of 28 x 28 pixels.
PICTURES = [
  ("input.mean=nan", rf"ImageInput\.mean = nan: {_NUMBER} \(-inf, inf\) "),
  ("input.std=0", rf"ImageInput\.std = 0\.0: {_NUMBER} \(0, inf\) "),
  ("input.fit=crop", r"\.fit = 'crop': it must be one of 'resize', 'pad' "),
  ("input.central_crop=0", rf"\.central_crop = 0\.0: {_NUMBER} \(0, 1\] "),
  ("input.central_crop=1.5", rf"\.central_crop = 1\.5: {_NUMBER} \(0, 1\] "),
  (
    "input.random_crop_padding=28",
    rf"\.random_crop_padding = 28: {_INTEGER} 0 and at most 27 ",
  ),
  (
    "input.random_crop_padding=-1",
    rf"\.random_crop_padding = -1: {_INTEGER} 0 and at most 27 ",
  ),
  ("input.cutout=29", rf"\.cutout = 29: {_INTEGER} 0 and at most 28 "),
  ("input.random_flip=2", rf"input\.random_flip {_BOOL} '2'$"),
  ("input.color_jitter=true", r"\.color_jitter needs channels = 3; got 1 "),
  ("input.image_size=0", rf"ImageInput\.image_size = 0: {_INTEGER} 1 "),
  ("input.channels=4", r"ImageInput\.channels = 4: it must be one of 1, 3 "),
  (
    "eval_input.random_flip=true",
    r"random_flip = True is random and for training, but shuffle is False; switch one",
  ),
  ("input.split=validation", r"\.split = 'validation': it must be one of 'train', 'te"),
  ("eval_input.shuffle=x", rf"eval_input\.shuffle {_BOOL} 'x'$"),
  ("eval_input.last_batch=keep", r"\.last_batch = 'keep': it must be one of 'drop', '"),
  ("input.batch_size=x", r"input\.batch_size takes an int; got 'x'$"),
  ("input.batch_size=-8", rf"ImageInput\.batch_size = -8: {_INTEGER} 1 "),
  ("input.seed=2147483648", rf"\.seed = 2147483648: {_INTEGER} 0 and at most 21474836"),
  ("eval_input.seed=x", r"eval_input\.seed takes an int; got 'x'$"),
  ("eval_input.batch_size=0", rf"ImageInput\.batch_size = 0: {_INTEGER} 1 "),
]
# Of the character model: rows of 128 ids, 97 tokens.
CHARACTERS = [
  ("input.seq_len=0", rf"CharTextInput\.seq_len = 0: {_INTEGER} 1 "),
  ("input.seq_len=x", r"input\.seq_len takes an int; got 'x'$"),
  ("eval_input.seq_len=-1", rf"CharTextInput\.seq_len = -1: {_INTEGER} 1 "),
  (
    "input.split=dev",
    r"CharTextInput\.split = 'dev': it must be one of 'train', 'test'",
  ),
  (
    "input.text_dir=None",
    r"input\.text_dir takes a str; got None; the word is written",
  ),
  (
    "input.num_classes=3",
    r"input has no parameter 'num_classes'; known: batch_size, c",
  ),
  (
    "task.embedding=3",
    r"task has no parameter 'embedding'; did you mean 'tie_embeddin",
  ),
  ("task.sequence_length=0", rf"TransformerLm\.sequence_length = 0: {_INTEGER} 1 "),
  ("task.ff_dim=0", rf"TransformerLm\.ff_dim = 0: {_INTEGER} 1 "),
  ("task.num_heads=0", rf"TransformerLm\.num_heads = 0: {_INTEGER} 1 "),
  ("task.vocab_size=0", rf"TransformerLm\.vocab_size = 0: {_INTEGER} 1 "),
  ("task.final_norm=maybe", rf"task\.final_norm {_BOOL} 'maybe'$"),
  ("task.tie_embeddings=2", rf"task\.tie_embeddings {_BOOL} '2'$"),
  ("task.depth_scaled_init=no way", rf"task\.depth_scaled_init {_BOOL} 'no way'$"),
  ("task.label_smoothing=nan", rf"Loss\.label_smoothing = nan: {_NUMBER} \[0, 1\) "),
  ("task.learner.optimizer.beta1=1", rf"Adam\.beta1 = 1\.0: {_NUMBER} \[0, 1\) "),
  ("task.learner.optimizer.beta2=-0.5", rf"Adam\.beta2 = -0\.5: {_NUMBER} \[0, 1\) "),
  ("task.learner.optimizer.epsilon=0", rf"Adam\.epsilon = 0\.0: {_NUMBER} \(0, inf\) "),
  (
    "task.learner.optimizer.epsilon=1e-60",
    rf"Adam\.epsilon = 1e-60: {_NUMBER} \(0, inf\) in float32 too, .* becomes 0 ",
  ),
  (
    "task.learner.optimizer.momentum=0",
    r"optimizer has no parameter 'momentum'; known",
  ),
  (
    "task.learner.lr_schedule.warmup_steps=0",
    rf"LinearWarmup\.warmup_steps = 0: {_INTEGER} 1 ",
  ),
  (
    "task.learner.lr_schedule.warmup_steps=1.5",
    r"lr_schedule\.warmup_steps takes an int; got '1\.5'$",
  ),
  (
    "task.learner.lr_schedule.after.total_steps=0",
    rf"Cosine\.total_steps = 0: {_INTEGER} 1 ",
  ),
  (
    "task.learner.lr_schedule.after.floor=2",
    rf"Cosine\.floor = 2\.0: {_NUMBER} \[0, 1\] ",
  ),
  (
    "task.learner.lr_schedule.warmup=1",
    r"lr_schedule has no parameter 'warmup'; did you mean 'warmup_steps'\?$",
  ),
]
PREPARED = [
  ("input.dataset=", r"TfdsImageInput\.dataset must be set, for example to 'cifar10'"),
  ("input.num_classes=0", rf"TfdsImageInput\.num_classes = 0: {_INTEGER} 1 "),
  ("input.shuffle_block=0", rf"TfdsImageInput\.shuffle_block = 0: {_INTEGER} 1 "),
  ("input.cutout=481", rf"\.cutout = 481: {_INTEGER} 0 and at most 480 "),
  ("task.norm.decay=-1", rf"BatchNorm\.decay = -1\.0: {_NUMBER} \[0, 1\] "),
  ("task.drop_path_keep=0", rf"AmoebaNet\.drop_path_keep = 0\.0: {_NUMBER} \(0, 1\] "),
]
SYNTHETIC_TEXT = [
  ("input.vocab_size=1", rf"SyntheticTextInput\.vocab_size = 1: {_INTEGER} 2 "),
  ("input.num_examples=x", r"input\.num_examples takes an int; got 'x'$"),
  (
    "eval_input.vocab_size=99",
    r"task\.vocab_size=11: must be at least the 99 of eval_",
  ),
  ("task.model_dim=9", r"num_heads=2 does not divide model_dim=9; 1 does "),
  ("task.num_layers=1.5", r"task\.num_layers takes an int; got '1\.5'$"),
  ("task.sequence_length=4", r"\.sequence_length=4: must be at least 5, as eval_input"),
  ("task.dropout_keep_prob=2", rf"Dropout\.keep_prob = 2\.0: {_NUMBER} \(0, 1\] "),
]
TREE = [
  ("train=", r"train is a Params; set one of its keys: max_steps, .*; got ''$"),
  ("pipeline=1", r"pipeline is a Params; set one of its keys: num_partitions, .*'1'$"),
  ("task.loss=5", r"task\.loss is a Params; set one of its keys: cls, .*; got '5'$"),
  ("task[0].dim=3", r"task has no parameter 0; known: cls, dim, image_values, keep_pr"),
  ("task.dim[0]=3", r"task\.dim\[0\]: task\.dim is 6, no Params, and has no 0$"),
  ("name=None", r"name takes a str; got None; the word is written 'None'$"),
  ("train.max_steps=", r"train\.max_steps takes an int; got ''$"),
  ("train.log_interval_steps=x", r"train\.log_interval_steps takes an int; got 'x'$"),
  (
    "train.save_interval_steps=2.5",
    r"n\.save_interval_steps takes an int; got '2\.5'$",
  ),
  (
    "train.keep_checkpoints=-1",
    r"train\.keep_checkpoints=-1: must be a whole number, ",
  ),
  ("train.eval_interval_steps=x", r"train\.eval_interval_steps takes an int; got 'x'$"),
  ("pipeline.num_micro_batches=1.5", r"\.num_micro_batches takes an int; got '1\.5'$"),
  (
    "pipeline.intra_op_threads=-1",
    r"\.intra_op_threads=-1: must be a whole number, at",
  ),
  ("pipeline.intra_op_threads=x", r"pipeline\.intra_op_threads takes an int; got 'x'$"),
  ("pipeline.xla=2", rf"pipeline\.xla {_BOOL} '2'$"),
  (
    "pipeline.layer_times=None",
    r"\.layer_times takes a str; got None; the word is wri",
  ),
  (
    "pipeline.devices=None",
    r"pipeline\.devices takes a str; got None; the word is wri",
  ),
  ("pipeline.lengths=(1,2", r"pipeline\.lengths: '\(1,2' is not a literal; strings in"),
  (
    "pipeline.lengths='(1,4)'",
    r"\.lengths takes a value of type tuple; got '\(1,4\)'$",
  ),
  (
    "task.learner.cls=type/tfpipe.task/Task",
    r"task\.learner=<class 'tfpipe\.task\.Task'>: must be the Params of a class with s",
  ),
  (
    "task.learner.optimizer.cls=type/builtins/int",
    r"optimizer = the Params of <class 'int'>: it must be the Params of a class deriv",
  ),
  (
    "task.learner.optimizer.cls=type/os/getcwd",
    r"optimizer = the Params of <built-in function getcwd>: it must be the Params of a",
  ),
  (
    "task.loss.cls=type/builtins/int",
    r"Layers\(\)\[4\] is the Params of <class 'int'>: must be the Params of a layer$",
  ),
  (
    "task.loss.label_smoothing=1",
    rf"ClassifierLoss\.label_smoothing = 1\.0: {_NUMBER} \[0, 1\) ",
  ),
  ("task.image_values=10", r"block_0\.in_dim=10 does not fit \(4, 3, 3, 1\)$"),
  (
    "eval_input.cls=type/tfpipe.task/Task",
    r"eval_input=<class 'tfpipe\.task\.Task'>: must be the Params of a class with Sp",
  ),
]
_ROWS = [
  (AMOEBANET, PICTURES),
  (CHAR, CHARACTERS),
  (PAPER, PREPARED),
  (TEXT, SYNTHETIC_TEXT),
  (IMAGE, TREE),
]
# Experiment, arguments, message.
TABLE = [
  *((name, (f"--set={a}",), m) for name, rows in _ROWS for a, m in rows),
  (
    AMOEBANET,
    ("--set=input.random_resized_crop=true", "--set=input.fit=pad"),
    r"random_resized_crop replaces central_crop \(here 1\.0\) and fit \(here 'pad'\);",
  ),
  *(
    (IMAGE, (f"{field}~nobody.here/a{ending}",), message + _NOBODY)
    for field, ending, message in (
      ("--layer_times=", "", r"layer times '~nobody\.here/a'"),
      ("--schedule=", ".csv", r"pipeline\.schedule='~nobody\.here/a\.csv'"),
      ("--set=train.hardware=", ".json", r"hardware '~nobody\.here/a\.json'"),
    )
  ),
]
