"""Bad arguments, and what the message of each must say: field, value, allowed."""

from __future__ import annotations

from tests.program.training import IMAGE

NO_TEST = "tests.program.tiny.NoTest"
AMOEBANET = "image.fashion_mnist.AmoebaNetTiny"
CHAR = "lm.shakespeare.Char"
# Arguments, and what the message must match.
FLAGS = [
  (
    "--num_partition=2",
    r"^error: there is no flag --num_partition; did you mean 'num_partitions'\?$",
  ),
  ("--zzz=2", r"^error: there is no flag --zzz$"),
  ("--num_partitions=two", r"^error: --num_partitions=two: must be a whole number$"),
  ("--num_partitions=2.5", r"^error: --num_partitions=2\.5: must be a whole number$"),
  ("--num_partitions=: x", r"^error: --num_partitions=: x: must be a whole number$"),
  ("--search=maybe", r"^error: --search=maybe: must be true or false$"),
  ("--nosearch=1", r"^error: --nosearch=1 does not take an argument$"),
  ("--schedule", r"^error: Missing value for flag --schedule$"),
  ("--flagfile=no/such", r"^error: --flagfile=no/such: there is no such file or"),
  (
    "--set=name=5",
    r"^error: name='5': must be 'tests\.program\.tiny\.Image', the exper",
  ),
  ("--mode=trian", r"--mode=trian: must be one of train_and_eval, .*mean 'train'\?$"),
  ("--mode=", r"--mode=: must be one of train_and_eval, train, .*, plan, inspect$"),
  ("max_steps=3", r"unexpected arguments: max_steps=3$"),
  ("--set=train.max_steps", r"--set 'train\.max_steps': must be key\.path=value$"),
  ("--set=", r"--set '': must be key\.path=value$"),
  ("--set==3", r"'' is not a path of the form a\.b\[0\]\.c or a\['key'\]\.b$"),
  ("--set=train..max_steps=3", r"'train\.\.max_steps' is not a path of the form a\.b"),
  ("--set=batch_size=3", r"did you mean 'eval_input\.batch_size' or 'input\.batch_si"),
  (
    "--set=train.max_step=3",
    r"train\.max_step: train has .*; did you mean 'max_steps'",
  ),
  ("--set=pipline.remat=cell", r"no parameter 'pipline'; did you mean 'pipeline'\?$"),
  ("--set=train=3", r"train is a Params; set one of its keys: max_steps, .*got '3'$"),
  ("--set=train.max_steps.x=3", r"train\.max_steps is 6, no Params, and has no 'x'$"),
]
_COUNT = "must be a whole number, at least"
_LENGTHS = "must be empty or hold a number of layers, at least 1, for each"
PIPELINE = [
  ("--num_partitions=0", rf"pipeline\.num_partitions=0: {_COUNT} 1$"),
  ("--num_partitions=-1", rf"pipeline\.num_partitions=-1: {_COUNT} 1$"),
  ("--num_partitions=6", r"pipeline\.num_partitions=6: must be at most the .*, 5$"),
  ("--set=pipeline.num_partitions=True", r"e\.num_partitions takes an int; got 'True'"),
  ("--set=pipeline.num_partitions=None", r"e\.num_partitions takes an int; got 'None'"),
  ("--num_micro_batches=0", rf"pipeline\.num_micro_batches=0: {_COUNT} 1$"),
  (
    "--num_micro_batches=3",
    r"micro_batches=3 does not divide (eval_)?input\.batch_size=8; .* does is 2$",
  ),
  (
    "--num_micro_batches=16",
    r"micro_batches=16 does not divide (eval_)?input\.batch_size=8; .* does is 8$",
  ),
  ("--schedule=gpip", r"e\.schedule='gpip': must be one of gpipe, 1f.*mean 'gpipe'\?"),
  ("--schedule=", r"pipeline\.schedule='': must be one of gpipe, 1f1b"),
  ("--schedule=GPipe", r"e\.schedule='GPipe': must be one of gpipe, .*mean 'gpipe'\?"),
  (
    "--remat=cells",
    r"pipeline\.remat='cells': must be one of none, cell, layer; did you mean 'cell'\?",
  ),
  ("--set=pipeline.remat=None", r"pipeline\.remat takes a str; got None; the word is"),
  (
    "--set=pipeline.xla=maybe",
    r"pipeline\.xla takes a bool \(true/false, yes/no, on/off, 1/0\); got 'maybe'$",
  ),
  (
    "--devices=gpus",
    r"pipeline\.devices='gpus': 'gpus' is not a device name .* did you mean 'gpu'\?$",
  ),
  (
    "--devices=",
    r"pipeline\.devices='': '' is not a device name such as 'GPU:0', nor one of auto",
  ),
  (
    "--devices=GPU",
    r"pipeline\.devices='GPU': 'GPU' is not a device name .* did you mean 'gpu'\?$",
  ),
  (
    "--devices=CPU:0",
    r"pipeline\.devices='CPU:0' names 1 devices; the schedule needs 2$",
  ),
  (
    "--devices=CPU:0,CPU:1,CPU:2",
    r"pipeline\.devices='CPU:0,CPU:1,CPU:2' names 3 devices; the schedule needs 2$",
  ),
  (
    "--devices=CPU:0,",
    r"pipeline\.devices='CPU:0,': '' is not a device name such as 'GPU:0', nor one of",
  ),
  (
    "--devices=CPU:0,CPU:x",
    r"pipeline\.devices='CPU:0,CPU:x': 'CPU:x' is not a device name such as 'GPU:0', n",
  ),
  (
    "--devices=0,1",
    r"pipeline\.devices='0,1': '0' is not a device name such as 'GPU:0', nor one of au",
  ),
  (
    "--devices=CPU:0,CPU:5000",
    r"pipeline\.devices='CPU:0,CPU:5000': 'CPU:5000' must be .*, 2: CPU:0 to CPU:1$",
  ),
  (
    "--devices=GPU:0, /device:cpu:2",
    r"\.devices='GPU:0, /device:cpu:2': '/device:cpu:2' must be .*, 2: CPU:0 to CPU:1$",
  ),
  (
    "--set=pipeline.lengths=(1,2,2)",
    rf"pipeline\.lengths=\(1, 2, 2\): {_LENGTHS} .*2",
  ),
  ("--set=pipeline.lengths=(2,2)", r"lengths \[2, 2\] add up to 4, but there are 5 la"),
  ("--set=pipeline.lengths=(5,0)", rf"pipeline\.lengths=\(5, 0\): {_LENGTHS}"),
  ("--set=pipeline.lengths=(6,-1)", rf"pipeline\.lengths=\(6, -1\): {_LENGTHS}"),
  ("--set=pipeline.lengths=(True,4)", rf"pipeline\.lengths=\(True, 4\): {_LENGTHS}"),
  ("--set=pipeline.lengths=(2.5,2.5)", rf"e\.lengths=\(2\.5, 2\.5\): {_LENGTHS}"),
  ("--set=pipeline.lengths=('a','b')", rf"e\.lengths=\('a', 'b'\): {_LENGTHS}"),
  ("--set=pipeline.lengths=5", r"pipeline\.lengths takes a value of type tuple; got 5"),
]
TRAIN = [
  ("--max_steps=-1", rf"train\.max_steps=-1: {_COUNT} 0$"),
  ("--set=train.max_steps=1e3", r"train\.max_steps takes an int; got '1e3'$"),
  ("--set=train.seed=-1", rf"train\.seed=-1: {_COUNT} 0$"),
  ("--set=train.seed=x", r"train\.seed takes an int; got 'x'$"),
  ("--set=train.deterministic=2", r"train\.deterministic takes a bool .*; got '2'$"),
  ("--set=train.log_interval_steps=0", rf"train\.log_interval_steps=0: {_COUNT} 1$"),
  ("--set=train.save_interval_steps=0", rf"train\.save_interval_steps=0: {_COUNT} 1$"),
  ("--set=train.keep_checkpoints=0", rf"train\.keep_checkpoints=0: {_COUNT} 1$"),
  (
    "--set=train.eval_interval_steps=-1",
    rf"train\.eval_interval_steps=-1: {_COUNT} 0$",
  ),
]
_INTEGER = "it must be an integer of at least"
INPUT = [
  ("--set=input.batch_size=0", rf"ImageInput\.batch_size = 0: {_INTEGER} 1 "),
  (
    "--set=input.batch_size=9",
    r"e\.num_micro_batches=2 does not divide input\.batch_size=9; .* that does is 1$",
  ),
  (
    "--set=eval_input.batch_size=5",
    r"num_micro_batches=2 does not divide eval_input\.batch_size=5; .* that does is 1$",
  ),
  (
    "--set=input.split=tset",
    r"\.split = 'tset': it must be one of 'train', 'test'; did you mean 'test'\?",
  ),
  ("--set=input.seed=-1", rf"\.seed = -1: {_INTEGER} 0 and at most 2147483647 "),
  ("--set=input.shuffle=maybe", r"input\.shuffle takes a bool \(true/.*; got 'maybe'$"),
  (
    "--set=input.last_batch=padd",
    r"\.last_batch = 'padd': it must be one of 'drop', 'pad'; did you mean 'pad'\?",
  ),
  ("--set=eval_input.repeat=true", r"eval_input\.repeat=True: must be False, or it "),
  ("--set=input.image_size=4", r"block_0\.in_dim=9 does not fit \(4, 4, 4, 1\)$"),
  ("--set=input.channels=2", r"ImageInput\.channels = 2: it must be one of 1, 3 "),
  (
    "--set=input.num_classes=8",
    r"task\.num_classes=7: must be at least the 8 of input$",
  ),
  (
    "--set=eval_input.num_classes=8",
    r"task\.num_classes=7: must be at least the 8 of eval_input$",
  ),
  ("--set=input.num_examples=0", rf"ImageInput\.num_examples = 0: {_INTEGER} 1 "),
  (
    "--set=input.cls=type/builtins/dict",
    r"input=<class 'dict'>: must be the Params of a class with Specs$",
  ),
  (
    "--set=input.cls=type/tfpipe.input.text_input/CharTextInput",
    r"Params of CharTextInput has no parameter 'seq_len'; known: batch_size, channels",
  ),
  (
    "--set=input.cls=type/tfpipe.input.text_input/CharText",
    r"input\.cls: 'type/.*': .* has no 'CharText'; did you mean 'CharTextInput'\?$",
  ),
  (
    "--set=input.cls=3",
    r"input\.cls takes a value of type class or function; got 3$",
  ),
  ("--set=task.cls=type/tfpipe.task/Task", r"Task does not define Layers$"),
  (
    "--set=task.cls=type/builtins/int",
    r"task=<class 'int'>: must be the Params of a class with Layers$",
  ),
]
_NUMBER = "it must be a number in"
LEARNER = [
  ("learning_rate=-1", rf"Learner\.learning_rate = -1\.0: {_NUMBER} \[0, inf\) "),
  ("learning_rate=nan", rf"Learner\.learning_rate = nan: {_NUMBER} \[0, inf\) "),
  ("learning_rate=inf", rf"Learner\.learning_rate = inf: {_NUMBER} \[0, inf\) "),
  (
    "learning_rate=1e39",
    rf"Learner\.learning_rate = 1e\+39: {_NUMBER} \[0, inf\) in float32 .* becomes inf",
  ),
  ("learning_rate=fast", r"task\.learner\.learning_rate takes a float; got 'fast'$"),
  ("learning_rte=1", r"no parameter 'learning_rte'; did you mean 'learning_rate'\?$"),
  (
    "lr_schedule=3",
    r"Learner\.lr_schedule = 3: it must be the Params of a class derived from Learning",
  ),
  ("optimizer=Adam", r"r\.optimizer is a Params; set one of its keys: cls, .*'Adam'$"),
  ("optimizer.momentum=1", rf"Momentum\.momentum = 1\.0: {_NUMBER} \[0, 1\) "),
  (
    "optimizer.momentum=0.999999999",
    rf"Momentum\.momentum = 0\.999999999: {_NUMBER} \[0, 1\) in float32 .* becomes 1 ",
  ),
  ("optimizer.nesterov=2", r"r\.optimizer\.nesterov takes a bool \(true/.*; got '2'$"),
  (
    "clip_gradient_norm_to_value=-1",
    rf"Learner\.clip_gradient_norm_to_value = -1\.0: {_NUMBER} \[0, inf\) ",
  ),
  ("weight_decay_l2=-0.1", rf"Learner\.weight_decay_l2 = -0\.1: {_NUMBER} \[0, inf\) "),
  (
    "weight_decay_l2=1e-50",
    rf"Learner\.weight_decay_l2 = 1e-50: {_NUMBER} \[0, inf\) in float32 .* becomes 0 ",
  ),
  ("ema_decay=1", rf"Learner\.ema_decay = 1\.0: {_NUMBER} \[0, 1\) "),
  (
    "nonfinite=stopp",
    r"Learner\.nonfinite = 'stopp': it must be one of 'stop', 'skip'; did you mean 'st",
  ),
  ("max_skips=-1", rf"Learner\.max_skips = -1: {_INTEGER} 0 "),
  ("accumulate_steps=0", rf"Learner\.accumulate_steps = 0: {_INTEGER} 1 "),
]
NETWORKS = [
  (
    AMOEBANET,
    "genotype=amoebanet",
    r"AmoebaNet\.genotype = 'amoebanet': it must be one of 'amoebanet_a', .*mean 'amoe",
  ),
  (AMOEBANET, "num_cells=2", rf"AmoebaNet\.num_cells = 2: {_INTEGER} 3 "),
  (AMOEBANET, "num_filters=18", r"AmoebaNet\.num_filters = 18: it must be a multiple "),
  (AMOEBANET, "num_filters=0", rf"AmoebaNet\.num_filters = 0: {_INTEGER} 4 "),
  (
    AMOEBANET,
    "num_classes=5",
    r"task\.num_classes=5: must be at least the 10 of (eval_)?input$",
  ),
  (
    AMOEBANET,
    "channels=3",
    r"task\.channels=3: must be 1, as (eval_)?input\.channels$",
  ),
  (
    AMOEBANET,
    "image_size=32",
    r"task\.image_size=32: must be 28, as (eval_)?input\.image_size$",
  ),
  (
    AMOEBANET,
    "stem=big",
    r"AmoebaNet\.stem = 'big': it must be one of 'imagenet', 'small' ",
  ),
  (AMOEBANET, "stem_filters=0", rf"AmoebaNet\.stem_filters = 0: {_INTEGER} 1 "),
  (
    AMOEBANET,
    "dropout_keep=0",
    rf"AmoebaNet\.dropout_keep = 0\.0: {_NUMBER} \(0, 1\] ",
  ),
  (AMOEBANET, "drop_path_keep=1.5", rf"\.drop_path_keep = 1\.5: {_NUMBER} \(0, 1\] "),
  (AMOEBANET, "drop_path_steps=0", rf"AmoebaNet\.drop_path_steps = 0: {_INTEGER} 1 "),
  (
    AMOEBANET,
    "drop_path_version=v2",
    r"AmoebaNet\.drop_path_version = 'v2': it must be one of 'v1', 'v3'",
  ),
  (AMOEBANET, "label_smoothing=1", rf"t\.label_smoothing = 1\.0: {_NUMBER} \[0, 1\) "),
  (AMOEBANET, "norm.decay=2", rf"BatchNorm\.decay = 2\.0: {_NUMBER} \[0, 1\] "),
  (AMOEBANET, "norm.epsilon=0", rf"BatchNorm\.epsilon = 0\.0: {_NUMBER} \(0, 1\) "),
  (
    AMOEBANET,
    "aux_weight=-1",
    rf"AmoebaNet\.aux_weight = -1\.0: {_NUMBER} \(0, inf\) ",
  ),
  (AMOEBANET, "aux_head=2", r"task\.aux_head takes a bool \(true/.*; got '2'$"),
  (CHAR, "num_heads=3", r"num_heads=3 does not divide model_dim=128; 2 does "),
  (CHAR, "model_dim=0", rf"TransformerLm\.model_dim = 0: {_INTEGER} 1 "),
  (CHAR, "num_layers=0", rf"TransformerLm\.num_layers = 0: {_INTEGER} 1 "),
  (
    CHAR,
    "vocab_size=96",
    r"task\.vocab_size=96: must be at least the 97 of (eval_)?input$",
  ),
  (
    CHAR,
    "sequence_length=64",
    r"\.sequence_length=64: must be at least 128, as (eval_)?input\.seq_len$",
  ),
  (
    CHAR,
    "activation=rely",
    r"\.activation = 'rely': it must be one of 'relu', 'gelu'; did you mean 'relu'\?",
  ),
  (
    CHAR,
    "positions=sinus",
    r"\.positions = 'sinus': it must be one of 'sinusoid', 'learned', 'none'; did you ",
  ),
  (CHAR, "dropout_keep_prob=0", rf"Dropout\.keep_prob = 0\.0: {_NUMBER} \(0, 1\] "),
  (CHAR, "logits_abs_max=-1", rf"Loss\.logits_abs_max = -1\.0: {_NUMBER} \[0, inf\) "),
  (CHAR, "label_smoothing=-1", rf"Loss\.label_smoothing = -1\.0: {_NUMBER} \[0, 1\) "),
]
# Experiment, arguments, message.
TABLE = [
  *((IMAGE, (argument,), message) for argument, message in FLAGS),
  *((IMAGE, (argument,), message) for argument, message in PIPELINE),
  *((IMAGE, (argument,), message) for argument, message in TRAIN),
  *((IMAGE, (argument,), message) for argument, message in INPUT),
  *((IMAGE, (f"--set=task.learner.{a}",), message) for a, message in LEARNER),
  *((name, (f"--set=task.{a}",), message) for name, a, message in NETWORKS),
  # The evaluation input does not fit: known before the training, not after it.
  (
    CHAR,
    ("--set=eval_input.seq_len=256",),
    r"task\.sequence_length=128: must be at least 256, as eval_input\.seq_len$",
  ),
  (
    AMOEBANET,
    ("--set=eval_input.channels=3",),
    r"task\.channels=1: must be 3, as eval_input\.channels$",
  ),
  (
    NO_TEST,
    ("--mode=eval",),
    r"tests\.program\.tiny\.NoTest has no evaluation input \(Test\)$",
  ),
  (
    NO_TEST,
    ("--set=eval_input=5",),
    r"eval_input=5: must be the Params of a class with Specs$",
  ),
  (
    NO_TEST,
    ("--set=train.eval_interval_steps=2",),
    r"train\.eval_interval_steps=2: must be 0, for there is no evaluation input",
  ),
  # Contradictions.
  (
    IMAGE,
    ("--num_partitions=2", "--set=pipeline.num_partitions=3"),
    r"pipeline\.num_partitions is set twice: to 3 and to 2$",
  ),
  (
    IMAGE,
    ("--set=train.max_steps=3", "--set=train.max_steps=4"),
    r"train\.max_steps is set twice: to 3 and to 4$",
  ),
  (
    IMAGE,
    ("--set=pipeline.lengths=(2,3)", "--num_partitions=3"),
    rf"pipeline\.lengths=\(2, 3\): {_LENGTHS} .*num_partitions=3",
  ),
  (
    IMAGE,
    ("--set=task.learner.ema_decay=0", "--set=task.learner.ema_ramp=1"),
    r"Learner\.ema_ramp = True has no effect while ema_decay = 0 ",
  ),
  # Names of experiments.
  (
    "tests.program.tiny.Imag",
    (),
    r"no experiment 'tests\.program\.tiny\.Imag'; nearest are: .*\.tiny\.Image, ",
  ),
  (
    "lm.shakespear.Char",
    (),
    r"no experiment 'lm\.shakespear\.Char'; nearest are: lm\.shakespeare\.Char$",
  ),
  (
    "lm.shakespeare.char",
    (),
    r"no experiment 'lm\.shakespeare\.char'; nearest are: lm\.shakespeare\.Char$",
  ),
  (
    "Char",
    (),
    r"no experiment 'Char'; params files are: .*, lm\.shakespeare; ask for <file>\.<",
  ),
  ("", (), r"--model is missing; it names an experiment$"),
  (
    "tests.program.tiny.Block",
    (),
    r"tests\.program\.tiny\.Block is no registered experiment; decorate it with @",
  ),
  (
    "tests.program.tiny.NoTask",
    (),
    r"tests\.program\.tiny\.NoTask has no Task\(\); define it to return Params$",
  ),
]
