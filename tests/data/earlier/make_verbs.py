"""A finished and a half-finished run of every verb, for the sets of version 0.2.0 and later. `make.py` calls it.

Every run is made by a command. `commands.json` keeps its words, so that the tests give the same command again.
`libraries.json` has the versions of the libraries that plans of studies and fitted maps depend on.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from make import ANIMALS, CLI, DEEDS, MTIME_NS, PLACE, PLACES, articles, write

MODELS = "models"
# Words that every tokenizer of the models below knows.
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOWNS = ("Arden", "Belmont", "Corvale", "Dunmere")
THINGS = ("harbour", "library", "windmill")

# A killed command: a parent and its worker in one process, which kills itself when it has come to a step often enough,
# in the run whose name has that end: some verbs make several.
KILLED = """
import sys
import shardmill.run
from shardmill.cli import main
from shardmill.testing import InProcessEngine, crash_at
step, after, within = sys.argv[1], int(sys.argv[2]), sys.argv[3]
del sys.argv[1:4]
class Engine(InProcessEngine):
    def start(self, run):
        self.on_step = crash_at(step, after) if run.endswith(within) else self.on_step
        return super().start(run)
shardmill.run.LocalEngine = lambda *devices, **options: Engine()
main()
"""

FUNCTIONS = '''"""Functions of a user, for `apply`."""


def count_words(rows):
    """One row per item."""
    return [{"words": len(row["text"].split()), "shout": row["title"].upper()} for row in rows]


class Pieces:
    """A row per word that is long enough, none for a text without one."""

    columns = {"piece": "string", "letters": "int64"}  # noqa: RUF012

    def __init__(self, shortest=1):
        self.shortest = shortest

    def __call__(self, rows):
        return [
            [{"piece": word, "letters": len(word)} for word in row["text"].split() if len(word) >= self.shortest]
            for row in rows
        ]
'''

OBJECTIVES = '''"""Objectives of a user, for `tune`."""

import json


def quadratic(parameters, context):
    """The best point is x = 1, n = 1, way = a."""
    return (parameters["x"] - 1) ** 2 + 0.1 * parameters["n"] + (parameters["way"] == "b")


def stepwise(parameters, context):
    """Four steps with a checkpoint each; a killed trial goes on where it was."""
    found = context.checkpoint()
    first = found.step + 1 if found is not None else 0
    value = json.loads(found.read("value.json")) if found is not None else 0.0
    for step in range(first, 4):
        value += quadratic(parameters, context)
        context.report(step, {"value": value / (step + 1)})
        context.keep(step, {"value.json": json.dumps(value).encode()})
    return value / 4
'''

TASKS = '''"""A task of a user, for `run`: the class of docs/tasks.md."""

import numpy as np
import pyarrow as pa

from shardmill.tasks.base import Output, Prepared, Task


class Lengths(Task):
    """Counts the words of each text."""

    output = pa.schema([pa.field("words", pa.int64())])
    batch_budget = 100

    def __init__(self, scale=1):
        self.scale = scale

    def fingerprint(self):
        return {"version": "1"}

    def open(self, device):
        pass

    def prepare(self, texts):
        return Prepared(texts, np.array([len(text.split()) if text else 0 for text in texts]))

    def run(self, inputs):
        column = pa.array([len(text.split()) * self.scale for text in inputs])
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output))
'''

STUDY = """
[work]
call = "{call}"
trials = {trials}
seed = 5
generation = 3

[space]
x = {{ low = -5.0, high = 5.0 }}
n = {{ low = 1, high = 8 }}
way = ["a", "b"]
"""

AUGMENT = """
[work]
source = ["range:40:1240"]
text = "sample_id"
id = ["sample_id"]
task = "augment"
params = { preset = "aggressive", seed = 5, epoch = 2 }

[execution]
device = "cpu"
shard_bytes = 300
"""


class Recorder:
    """Gives commands in the work folder, and writes down those that made a run."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands: dict[str, dict[str, Any]] = {}

    def finish(self, name: str, *words: str, verify: bool = True) -> None:
        """A run that is done and verified."""
        out = f"{self.home}/runs/{name}"
        self._give(CLI, *words, "--out", out)
        if verify:
            self._give(CLI, "verify", out, "--allow-code")
        self._note(name, words, done=True)

    def kill(self, name: str, step: str, after: int, *words: str, within: str = "") -> None:
        """A run whose only process was killed when it came to a step for one time more than `after`.

        `within` is the end of the name of the run on the way in which that happened.
        """
        out = f"{self.home}/runs/{name}"
        killed = [sys.executable, "-c", KILLED, step, str(after), f"{name}{within}"]
        self._give(killed, *words, "--out", out, status=-9)
        self._note(name, words, done=False)

    def _note(self, name: str, words: tuple[str, ...], *, done: bool) -> None:
        told = [word.replace(str(self.home), PLACE) for word in words]
        self.commands[name] = {"done": done, "words": [*told, "--out", f"{PLACE}/runs/{name}"]}

    def _give(self, before: list[str], *words: str, status: int = 0) -> None:
        print("$ shardmill", *words, file=sys.stderr)
        done = subprocess.run([*before, *words], cwd=self.home, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != status:
            raise SystemExit(f"exit status {done.returncode}, not {status}")


def make_verbs(home: Path) -> None:
    write_code(home)
    write_sources(home / "sources")
    write_models(home / MODELS)
    found = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{home}/code{os.pathsep}{found}"
    give = Recorder(home)
    for make in (make_embed, make_generate, make_summarize, make_answer, make_apply, make_dedup, make_train):
        make(give, home / "sources")
    for make in (make_tune, make_map, make_augment_ranges, make_run):
        make(give, home / "sources")
    os.environ["PYTHONPATH"] = found
    (home / "commands.json").write_text(json.dumps(give.commands, indent=1) + "\n")
    versions = {name: importlib.metadata.version(name) for name in ("optuna", "umap-learn", "numba")}
    (home / "libraries.json").write_text(json.dumps(versions) + "\n")
    for folder in home.rglob("__pycache__"):
        shutil.rmtree(folder)


def make_embed(give: Recorder, sources: Path) -> None:
    """One vector an item, one a window, and half of one with a template and shorter vectors."""
    words = ("embed", f"{sources}/passages.jsonl", "--id", "id", "--model", f"{MODELS}/embedder", "--device", "cpu")
    words = (*words, "--shard-bytes", "700", "--precision", "float32")
    give.finish("embed", *words, "--text", "text", "--keep", "year")
    give.finish("embed-windows", *words, "--text", "text", "--window-tokens", "12", "--overlap", "2")
    more = ("--text", "{id}: {text}", "--keep", "year:double", "--dims", "8", "--dtype", "float16")
    give.kill("embed-half", "committing", 1, *words, *more)


def make_generate(give: Recorder, sources: Path) -> None:
    words = ("generate", f"{sources}/words.jsonl", "--model", f"{MODELS}/writer", "--id", "id", "--device", "cpu")
    words = (*words, "--max-tokens", "6", "--precision", "float32", "--shard-bytes", "120")
    give.finish("generate", *words, "--template", "Say: {text}")
    drawn = ("--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "--seed", "3", "--system", "Be brief.")
    give.kill("generate-half", "committing", 1, *words, "--template", "{text}", *drawn, "--stop", "zz")


def make_summarize(give: Recorder, sources: Path) -> None:
    words = ("summarize", f"{sources}/news.jsonl", "--text", "article", "--device", "cpu", "--shard-bytes", "400")
    extractive = ("--model", f"{MODELS}/embedder", "--sentences", "2", "--precision", "float32")
    give.finish("summarize", *words, *extractive, "--id", "id", "--reference", "gold", "--keep", "topic")
    give.finish("summarize-groups", *words, *extractive, "--group-by", "topic")
    give.kill("summarize-half", "committing", 1, *words, *extractive, "--id", "id")
    give.kill("summarize-groups-half", "committing", 1, *words, *extractive, "--group-by", "topic", within="-items")
    written = ("--model", f"{MODELS}/writer", "--id", "id", "--max-tokens", "6", "--window-tokens", "64")
    give.kill("summarize-written-half", "committing", 1, *words, *written, "--prompt", "In short:")


def make_answer(give: Recorder, sources: Path) -> None:
    words = ("answer", f"{sources}/questions.jsonl", "--over", f"{give.home}/runs/embed", "--text", "question")
    words = (*words, "--id", "id", "--device", "cpu", "--shard-bytes", "250", "--precision", "float32", "-k", "3")
    give.finish("answer", *words)
    give.kill("answer-half", "committing", 1, *words, "--by", "meaning", "--reader", f"{MODELS}/reader")


def make_apply(give: Recorder, sources: Path) -> None:
    """By a module, and by a file, which travels in the plan."""
    words = ("apply", f"{sources}/tales.jsonl", "--id", "id", "--shard-bytes", "700")
    give.finish("apply-module", *words, "--call", "kept.functions:count_words", "--keep", "stars")
    pieces = ("--param", "shortest=5", "--column", "text", "--batch", "4")
    give.finish("apply-file", *words, "--call", f"{sources}/functions.py:Pieces", *pieces)
    give.kill("apply-module-half", "committing", 1, *words, "--call", "kept.functions:Pieces", *pieces)
    give.kill("apply-file-half", "committing", 1, *words, "--call", f"{sources}/functions.py:count_words")


def make_dedup(give: Recorder, sources: Path) -> None:
    """Each has runs of its own on the way: OUT-signatures, OUT-bands, OUT-pairs."""
    words = ("dedup", f"{sources}/doubles.jsonl", "--text", "text", "--id", "id", "--shard-bytes", "1600")
    give.finish("dedup", *words, "--threshold", "0.7")
    give.finish("dedup-exact", *words, "--exact")
    give.kill("dedup-half-bands", "committing", 1, *words, "--threshold", "0.7", within="-bands")
    give.kill("dedup-half-pairs", "committing", 0, *words, "--threshold", "0.7", within="-pairs")


def make_train(give: Recorder, sources: Path) -> None:
    """A training has one item: half of it is a checkpoint."""
    words = ("train", f"{sources}/pairs.jsonl", "--columns", "question,passage", "--model", f"{MODELS}/embedder")
    words = (*words, "--batch", "4", "--epochs", "2", "--checkpoint-every", "2", "--device", "cpu", "--held-out", "0.2")
    give.finish("train", *words, "--seed", "3")
    labelled = ("--label", "score", "--dims", "16,8", "--schedule", "cosine", "--prompt", "question=Q:")
    give.kill("train-half", "checkpointed", 1, *words, *labelled)


def make_tune(give: Recorder, sources: Path) -> None:
    finished = STUDY.format(call="kept.objectives:quadratic", trials=6)
    half = STUDY.format(call=f"{sources}/objectives.py:stepwise", trials=6)
    (sources / "study.toml").write_text(finished)
    (sources / "study-half.toml").write_text(half)
    give.finish("tune", "tune", f"{sources}/study.toml", "--device", "cpu")
    # The fourth trial, the first of the second generation, has two checkpoints.
    give.kill("tune-half", "checkpointed", 13, "tune", f"{sources}/study-half.toml", "--device", "cpu")


def make_map(give: Recorder, sources: Path) -> None:
    words = ("map", f"{give.home}/runs/embed", "--shard-bytes", "300", "--device", "cpu", "--seed", "2")
    (sources / "marks.txt").write_text("Where is the harbour?\n")
    give.finish("map", *words, "--mark", f"{sources}/marks.txt")
    # The map is fitted, and some of the vectors have their place.
    give.kill("map-half", "committing", 1, *words)


def make_augment_ranges(give: Recorder, sources: Path) -> None:
    (sources / "augment.toml").write_text(AUGMENT)
    give.finish("augment-range", "run", "--spec", f"{sources}/augment.toml")
    give.kill("augment-range-half", "committing", 2, "run", "--spec", f"{sources}/augment.toml")


def make_run(give: Recorder, sources: Path) -> None:
    """A task of the user's own, and the fake ones, over an earlier run too."""
    words = ("run", f"{sources}/tales.jsonl", "--text", "text", "--id", "id", "--shard-bytes", "700")
    words = (*words, "--device", "cpu")
    give.finish("run", *words, "--task", "kept.tasks:Lengths", "--param", "scale=2")
    give.kill("run-own-half", "committing", 1, *words, "--task", "kept.tasks:Lengths", "--keep", "title")
    give.kill("run-stream-half", "committing", 1, *words, "--task", "shardmill.testing:FakeStream")
    over = ("run", f"run:{give.home}/runs/run", "--text", "id", "--id", "id", "--keep", "words", "--device", "cpu")
    give.kill("run-over-run-half", "committing", 1, *over, "--task", "shardmill.testing:FakeTask", "--shard-bytes", "9")


def write_code(home: Path) -> None:
    """Modules of a user. A plan has the digest of the module, so that nobody else may change it."""
    package = home / "code/kept"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Code of a user."""\n')
    for name, text in (("functions", FUNCTIONS), ("objectives", OBJECTIVES), ("tasks", TASKS)):
        (package / f"{name}.py").write_text(text)
    (home / "sources").mkdir(exist_ok=True)
    (home / "sources/functions.py").write_text(FUNCTIONS)
    (home / "sources/objectives.py").write_text(OBJECTIVES)


def write_sources(sources: Path) -> None:
    write(sources / "tales.jsonl", articles(24))
    passages = [
        {"id": f"{town}-{thing}", "text": f"{town} lies on a river. Its {thing} is of {1500 + 31 * i + 7 * j}.",
         "year": 1500 + 31 * i + 7 * j}
        for i, town in enumerate(TOWNS)
        for j, thing in enumerate(THINGS)
    ]  # fmt: skip
    passages += [{"id": f"p{i}", "text": f"The {animal} {DEEDS[i % 5]} {PLACES[i % 5]}.", "year": 1900 + i}
                 for i, animal in enumerate((*ANIMALS, "crane", "newt", "vole", "wren"))]  # fmt: skip
    write(sources / "passages.jsonl", passages)
    write(sources / "questions.jsonl", [
        {"id": f"q{n}", "question": f"When was the {THINGS[n % 3]} of {TOWNS[n % 4]} built?"} for n in range(8)
    ])  # fmt: skip
    write(sources / "words.jsonl", [{"id": f"w{i}", "text": f"{animal} {i}"} for i, animal in enumerate(ANIMALS)])
    sentences = [f"The {ANIMALS[i]} {DEEDS[i % 5]} {PLACES[(2 * i) % 5]}." for i in range(8)]
    write(sources / "news.jsonl", [
        {"id": i, "topic": "pond" if i % 3 else "meadow", "gold": sentences[i],
         "article": " ".join(sentences[(i + k) % 8] for k in range(3 + i % 2))}
        for i in range(8)
    ])  # fmt: skip
    rows = articles(20)
    for i in range(20, 30):
        text = rows[i - 17]["text"]
        near = text.upper() if i % 2 else text.replace("from the path", "from the old path")
        rows.append({**rows[i - 17], "id": f"a{i:03}", "text": near})
    write(sources / "doubles.jsonl", rows)
    write(sources / "pairs.jsonl", [
        {"question": f"where does the {animal} live {i}", "passage": f"the {animal} {PLACES[i % 5]} {i}",
         "score": i % 5 / 4}
        for i, animal in enumerate((*ANIMALS, *ANIMALS, *ANIMALS[:4]))
    ])  # fmt: skip


def write_models(folder: Path) -> None:
    """Models of a few kilobytes with weights that were drawn once: what they say means nothing."""
    import torch
    import transformers

    tokenizer = word_pieces()
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **shape)
    for name, kind in (("embedder", "BertModel"), ("reader", "BertForQuestionAnswering")):
        torch.manual_seed(7)
        model = getattr(transformers, kind)(config)
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(8)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    pooling = folder / "embedder/1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}))
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for i, (kind, path) in enumerate(kinds)]  # fmt: skip
    (folder / "embedder/2_Normalize").mkdir()
    (folder / "embedder/2_Normalize/config.json").write_text("{}")
    (folder / "embedder/modules.json").write_text(json.dumps(listed))
    (folder / "embedder/sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}))
    (folder / "embedder/config_sentence_transformers.json").write_text("{}")
    write_writer(folder / "writer")
    for path in folder.rglob("*"):
        os.utime(path, ns=(MTIME_NS, MTIME_NS))


def word_pieces() -> Any:
    import tokenizers
    import transformers

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = " ".join((*ANIMALS, *PLACES, *DEEDS, *THINGS, *TOWNS)).lower().split()
    known = dict.fromkeys([*specials, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,:?-"])
    model = tokenizers.models.WordPiece({word: i for i, word in enumerate(known)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in specials}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=128, **names)


def write_writer(folder: Path) -> None:
    import tokenizers
    import torch
    import transformers

    end, pad = "<|endoftext|>", "<|pad|>"
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    known = {token: i for i, token in enumerate((end, pad, *alphabet))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=known, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    chat = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, pad_token=pad, chat_template=chat, model_max_length=512
    )
    config = transformers.LlamaConfig(
        vocab_size=len(known), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=512, eos_token_id=0, bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
