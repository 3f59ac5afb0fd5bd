"""Texts, models and memory at their worst: the embed task gives right vectors or says clearly why not, and loses none.

Every test is a whole run, by each of the ways a model can be run here; each vector is held against the one that
transformers gives for that text alone, in float32.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardmill
from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.verbs.embed.task import EmbedTask
from shardmill.worker import Worker
from tests.support import tiny_models
from tests.support.services import unavailable
from tests.support.tiny_models import (
    MINILM,
    byte_level_bpe,
    fast,
    minilm_backend,
    pooling,
    qwen3,
    tokenizers,
    torch,
    transformers,
    unigram,
    word_piece,
    xlm_roberta,
)

LOWEST_COSINE = 0.9999
NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
SENTENCE = "the battery died after an hour and nobody on board had been told why the train left so early"
MIXED = [" ".join(SENTENCE.split()[i % 7 : i % 7 + 1 + i * 5 % 13]) for i in range(12)] * 2
LONG = f"{SENTENCE} {SENTENCE} {SENTENCE}"

SPOILT = "zebra"
PIECES = word_piece([*SENTENCE.split(), SPOILT, "word", *"abcdefghijklmnopqrstuvwxyz"])

# How a model is run: kind of encoder and precision. "chosen" leaves it to shardmill.
ON_CPU = {
    "padded float32": ("Encoder", "float32"),
    "packed float32": ("PackedEncoder", "float32"),
    "padded float16": ("Encoder", "float16"),
    "packed float16": ("PackedEncoder", "float16"),
}
GPU = pytest.param("chosen, GPU", marks=pytest.mark.gpu)
EVERY_WAY = [*ON_CPU, GPU]
FEW_WAYS = ["padded float32", "packed float16", GPU]


@dataclass
class OneWorker:
    """An engine: one worker in this process, on the device and in the way that a test asks for."""

    device: Device
    budgets: list[int] = field(default_factory=list)
    steps: list[Callable[[], None]] = field(default_factory=list)

    def start(self, run: str) -> OneWorker:
        self.worker = Worker(Ledger(run), device=self.device, name="one", on_step=self._note)
        self.worker.work()
        return self

    def _note(self, step: str, shard: int) -> None:
        if step == "batch":
            self.budgets.append(self.worker.runner.budget.now)
            for call in self.steps:
                call()

    def poll(self) -> bool:
        return False

    def stop(self) -> None:
        pass


def _choose(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers run their models so; what is to be precise, as the check of a run is, stays as it is."""
    from shardmill.models import choosing, encoder, kernels, packed

    encoders: dict[str, Any] = {"Encoder": encoder.Encoder, "PackedEncoder": packed.PackedEncoder}
    choose_kernel = choosing.choose_kernel

    def choose(model: kernels.Tried, device: Device) -> kernels.KernelChoice:
        if device.precise:
            return choose_kernel(model, device)
        kernel = encoders[kind](model.folder, device="cpu", pad_id=model.pad_id)
        kernel.cast(getattr(torch, dtype))
        return kernels.KernelChoice(kernel, kernel.name, 1024)

    monkeypatch.setattr(choosing, "choose_kernel", choose)


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OneWorker:
    """Asked for by a way of running, through `indirect`."""
    way = getattr(request, "param", "padded float32")
    if way == "chosen, GPU":
        return OneWorker(Device("cuda", torch.cuda.get_device_name(), 2))
    if way != "chosen, CPU":
        _choose(*ON_CPU[way], monkeypatch)
    return OneWorker(Device("cpu", "cpu", 1))


def in_ways(ways: Sequence[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", ways, indirect=True)


Write = Callable[..., Path]
Embed = Callable[..., Run]


@pytest.fixture
def embed(engine: OneWorker, tmp_path: Path, write_jsonl: Write, request: pytest.FixtureRequest) -> Embed:
    """A whole run over texts, in the way that is asked for, which must have been the way it was run."""

    def run(texts: Sequence[str], model: Path | str, out: str = "run", **execution: Any) -> Run:
        made = start(spec(write_jsonl(rows_of(texts)), model, **execution), tmp_path / out, engine=engine)
        way = request.node.callspec.params.get("engine", "padded float32")
        if way in ON_CPU:
            layout, dtype = way.split()
            assert notes(made)[0].startswith(f"Kernel: torch {dtype}, {layout}")
        return made

    return run


def spec(source: Path, model: Path | str, **execution: Any) -> Any:
    work = {"source": str(source), "text": "text", "id": "id", "params": {"model": str(model)}}
    return make_spec(work, {"max_errors": "100%", "batch_tokens": 128, "shard_bytes": 3_000, **execution})


def rows_of(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"id": f"k{i}", "text": text} for i, text in enumerate(texts)]


def notes(run: Run) -> list[str]:
    said: list[str] = run.ledger.workers.read()[0]["notes"]
    return said


def alone(folder: Path, texts: Sequence[str], *, mode: str = "mean", limit: int = 64) -> NDArray[np.float32]:
    """What transformers gives for each text by itself, with nothing padded, in float32."""
    return _alone(folder, tuple(texts), mode, limit)


@cache
def _alone(folder: Path, texts: tuple[str, ...], mode: str, limit: int) -> NDArray[np.float32]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    made: dict[str, NDArray[np.float32]] = {}
    with torch.inference_mode():
        for text in set(texts):
            ids = torch.tensor([tokenizer(text, truncation=True, max_length=limit)["input_ids"]])
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            made[text] = (hidden.mean(0) if mode == "mean" else hidden[-1]).numpy()
    return np.stack([made[text] for text in texts])


def check(run: Run, expected: NDArray[np.float32], bad: dict[int, str] | None = None) -> None:
    """Every row once and in order, each with its right vector; of those in `bad`, a reason instead."""
    bad = bad or {}
    table = run.table()
    assert table.column("id").to_pylist() == [f"k{i}" for i in range(len(expected))]
    assert sum(commit.rows for commit in run.ledger.commits.read().values()) == len(expected)
    reasons = {e["row"]: e["reason"] for e in run.errors()}
    assert reasons.keys() == bad.keys(), reasons
    for row, reason in bad.items():
        assert reason in reasons[row]
    for i, vector in enumerate(table.column("embedding").to_pylist()):
        assert (vector is None) == (i in bad), i
        if vector is not None:
            seen, due = np.array(vector, np.float64), expected[i].astype(np.float64)
            sizes = np.linalg.norm(seen), np.linalg.norm(due)
            assert seen @ due / (sizes[0] * sizes[1]) >= LOWEST_COSINE, i
            assert sizes[0] == pytest.approx(sizes[1], rel=0.01), i
    assert run.verify(sample=4).verified


def write_model(folder: Path, config: Any, mode: str = "mean", tokenizer: Any = None, **sentence: Any) -> Path:
    """Weights as large as can be for float16 to stay within the lowest cosine."""
    made = tokenizer or fast(PIECES, **NAMES, pad_token="[PAD]", mask_token="[MASK]")
    return tiny_models.write_model(folder, config, [pooling(mode)], sentence, tokenizer=made, scale=2)


def bert(**options: Any) -> Any:
    return tiny_models.bert(**{"vocab_size": PIECES.get_vocab_size(), **options})


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bert", bert())


@pytest.fixture(scope="module")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level, with no padding token and nothing before or after a text; its limit is its positions'."""
    backend = byte_level_bpe()
    config = qwen3(vocab_size=backend.get_vocab_size(), max_position_embeddings=1500)
    tokenizer = fast(backend, eos_token="<|endoftext|>")
    root = tmp_path_factory.mktemp("models") / "qwen"
    return write_model(root, config, "lasttoken", tokenizer, max_seq_length=None)


# Texts.


@in_ways(FEW_WAYS)
def test_a_million_characters_among_short_texts(embed: Embed, tiny_bert: Path) -> None:
    texts = [
        *MIXED,
        "x" * 1_000_000,
        *MIXED,
        " " * 999_999 + "x",
        LONG * 3_600,
        "漢字" * 500_000,
        "y" + "a\n" * 500_000,
    ]
    run = embed(texts, tiny_bert, shard_bytes=4_000_000)
    # Of those with many words, no more than the first thousands of characters can matter.
    check(run, alone(tiny_bert, [*texts[:-3], *(text[:9_000] for text in texts[-3:])]))
    assert sum(commit.truncated for commit in run.ledger.commits.read().values()) == 3


@in_ways([*FEW_WAYS, "packed float32"])
def test_a_text_over_the_budget_by_itself(embed: Embed, tiny_qwen: Path) -> None:
    """1,500 tokens where a batch has room for 128."""
    texts = [*MIXED, LONG * 100, *MIXED]
    check(embed(texts, tiny_qwen), alone(tiny_qwen, texts, mode="lasttoken", limit=1500))


@in_ways(FEW_WAYS)
@pytest.mark.parametrize("text", [MIXED[3], LONG * 4], ids=["short", "cut"])
def test_all_texts_equal(embed: Embed, tiny_bert: Path, text: str) -> None:
    run = embed([text] * 60, tiny_bert)
    check(run, alone(tiny_bert, [text] * 60))
    vectors = np.array(run.table().column("embedding").to_pylist())
    assert np.ptp(vectors, axis=0).max() < 1e-2


LETTERS = [*"aZ9.,é漢あ한ßΩя", "🙂", "\u0301", "\u200b", "\x00", "\ufffd", "\U0010ffff"]


@in_ways([*EVERY_WAY, "chosen, CPU"])
def test_all_texts_of_length_one(embed: Embed, tiny_bert: Path) -> None:
    texts = LETTERS * 4
    check(embed(texts, tiny_bert), alone(tiny_bert, texts))


@in_ways(FEW_WAYS)
def test_all_texts_of_one_token(embed: Embed, tiny_qwen: Path) -> None:
    texts = list("abcdefgh.,;:") * 5
    assert {len(row) for row in EmbedTask(model=str(tiny_qwen)).prepare(texts).inputs} == {1}
    check(embed(texts, tiny_qwen), alone(tiny_qwen, texts, mode="lasttoken", limit=1500))


@in_ways(FEW_WAYS)
def test_blank_texts_are_set_aside_and_only_they(embed: Embed, tiny_bert: Path) -> None:
    texts = ["a", " ", "b", "", "\n", "\t \r\n", "\u3000\u00a0", "c", *MIXED]
    check(embed(texts, tiny_bert), alone(tiny_bert, texts), dict.fromkeys((1, 3, 4, 5, 6), "blank"))


@in_ways([*FEW_WAYS, "packed float32"])
def test_a_text_of_no_tokens_is_set_aside(embed: Embed, tmp_path: Path) -> None:
    """A tokenizer that drops what is no letter, and puts nothing around a text."""
    backend = tokenizers.Tokenizer.from_str(PIECES.to_str())
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="$A", special_tokens=[])
    folder = write_model(tmp_path / "tiny", bert(), tokenizer=fast(backend, unk_token="[UNK]"))
    texts = [*MIXED, "\u200b", "\x00\x01", *MIXED]
    expected = alone(folder, [text if text.isascii() and text.isprintable() else "x" for text in texts])
    check(embed(texts, folder), expected, dict.fromkeys((24, 25), "no tokens"))


@in_ways(EVERY_WAY)
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_names_of_special_tokens_inside_a_text(embed: Embed, tmp_path: Path, kind: str) -> None:
    """Also that of the padding, from which XLM-R counts its positions."""
    if kind == "bert":
        folder = write_model(tmp_path / "tiny", bert())
    else:
        backend = unigram()
        config = xlm_roberta(vocab_size=backend.get_vocab_size(), pad_token_id=1)
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        folder = write_model(tmp_path / "tiny", config, tokenizer=fast(backend, **names))
    special = "[CLS] [SEP] [PAD] [MASK] [UNK]" if kind == "bert" else "<s> </s> <pad> <unk> <mask>"
    named = [f"the {word} hour {word}{word} died" for word in special.split()]
    texts = [*MIXED, *named, *special.split(), special, *MIXED]
    check(embed(texts, folder), alone(folder, texts))


# Models.


def _without_padding(folder: Path, config: Any, mode: str) -> Path:
    made = write_model(folder, config, mode, fast(PIECES, **NAMES))
    assert transformers.AutoTokenizer.from_pretrained(made).pad_token_id is None
    return made


@in_ways(EVERY_WAY)
@pytest.mark.parametrize(("config", "mode"), [(bert, "mean"), (qwen3, "lasttoken")], ids=["bert", "qwen3"])
def test_a_model_with_no_padding_token(embed: Embed, tmp_path: Path, config: Callable[[], Any], mode: str) -> None:
    folder = _without_padding(tmp_path / "tiny", config(), mode)
    texts = [*MIXED, LONG, "a", *MIXED]
    check(embed(texts, folder), alone(folder, texts, mode=mode))


@in_ways(FEW_WAYS)
@pytest.mark.parametrize(("limit", "positions", "cut_at"), [(3, 80, 3), (512, 20, 20), (None, 20, 20)])
def test_texts_over_the_longest_that_the_model_reads(
    embed: Embed, tmp_path: Path, limit: int | None, positions: int, cut_at: int
) -> None:
    """By its own limit, or by its positions where it says more than it has, or nothing."""
    config = bert(max_position_embeddings=positions)
    folder = write_model(tmp_path / "tiny", config, max_seq_length=limit)
    texts = [*MIXED, LONG, "word " * 300, *MIXED]
    run = embed(texts, folder)
    check(run, alone(folder, texts, limit=cut_at))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cut = sum(len(tokenizer(text)["input_ids"]) > cut_at for text in texts)
    assert sum(commit.truncated for commit in run.ledger.commits.read().values()) == cut > 0


def test_a_limit_that_leaves_no_room_is_refused_before_any_work(embed: Embed, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", bert(), max_seq_length=2)
    with pytest.raises(ModelError, match="2 tokens leave no room"):
        embed(MIXED, folder)
    assert Ledger(tmp_path / "run").commits.shards() == set()


def _rare_words(above: int) -> list[str]:
    vocabulary = (MINILM / "vocab.txt").read_text().split("\n")
    return [word for word in vocabulary[above:30000] if word.isascii() and word.isalpha()][:5]


def _refused_or_set_aside(run: Callable[[], Run], out: Path, expected: NDArray[np.float32], rows: set[int]) -> None:
    """Either nothing is begun and the model's fault is named, or all but these rows are right and these say why."""
    try:
        made = run()
    except ModelError as error:
        said = [str(error)]
        assert Ledger(out).commits.shards() == set()
    else:
        check(made, expected, dict.fromkeys(rows, ""))
        said = [error["reason"] for error in made.errors()]
    for reason in said:
        assert "IndexError" not in reason
        assert any(word in reason.lower() for word in ("vocabulary", "token", "embedding"))


@in_ways(["padded float32", "packed float16", "chosen, CPU"])
@pytest.mark.parametrize("vocabulary", [2000, 29000], ids=["most words", "rare words"])
def test_a_tokenizer_that_knows_more_than_the_model(embed: Embed, tmp_path: Path, vocabulary: int) -> None:
    """Where only rare words are beyond the model, the sentences that a worker tries first say nothing of it."""
    folder = write_model(tmp_path / "tiny", bert(vocab_size=vocabulary), tokenizer=fast(minilm_backend(), **NAMES))
    rare = _rare_words(29000)
    texts = [*MIXED, *(f"the {word} died" for word in rare), *MIXED]
    beyond = set(range(len(MIXED), len(MIXED) + len(rare))) if vocabulary == 29000 else set(range(len(texts)))
    fine = alone(folder, [text if i not in beyond else "," for i, text in enumerate(texts)])
    _refused_or_set_aside(lambda: embed(texts, folder), tmp_path / "run", fine, beyond)


@pytest.mark.gpu
def test_a_tokenizer_that_knows_more_than_the_model_on_a_gpu(tmp_path: Path, write_jsonl: Write) -> None:
    """In workers of their own: an id beyond the model is an assertion there, after which a process has no GPU."""
    folder = write_model(tmp_path / "tiny", bert(vocab_size=29000), tokenizer=fast(minilm_backend(), **NAMES))
    rare = _rare_words(29000)
    texts = [*MIXED, *(f"the {word} died" for word in rare), *MIXED]
    beyond = set(range(len(MIXED), len(MIXED) + len(rare)))
    fine = alone(folder, [text if i not in beyond else "," for i, text in enumerate(texts)])
    made = spec(write_jsonl(rows_of(texts)), folder, device="cuda", workers=1)
    _refused_or_set_aside(lambda: start(made, tmp_path / "run"), tmp_path / "run", fine, beyond)


def test_weights_of_another_vocabulary_than_the_config_says(embed: Embed, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", bert())
    config = (folder / "config.json").read_text()
    said = f'"vocab_size": {PIECES.get_vocab_size()}'
    assert said in config
    (folder / "config.json").write_text(config.replace(said, '"vocab_size": 3000'))
    with pytest.raises(ModelError, match="weights"):
        embed(MIXED, folder)
    assert Ledger(tmp_path / "run").commits.shards() == set()


@in_ways(FEW_WAYS)
def test_a_model_that_knows_more_than_its_tokenizer(embed: Embed, tmp_path: Path) -> None:
    """Rows of the embedding that no token has are common: their number is rounded up."""
    folder = write_model(tmp_path / "tiny", bert(vocab_size=PIECES.get_vocab_size() + 70))
    check(embed(MIXED, folder), alone(folder, MIXED))


@in_ways(FEW_WAYS)
def test_a_padding_token_that_the_model_does_not_know(embed: Embed, tmp_path: Path) -> None:
    """Added to the tokenizer by someone who forgot the model: no text has it, so each has its right vector."""
    backend = tokenizers.Tokenizer.from_str(PIECES.to_str())
    backend.add_special_tokens(["<|pad|>"])
    tokenizer = fast(backend, **NAMES, pad_token="<|pad|>")
    assert tokenizer.pad_token_id == PIECES.get_vocab_size()
    folder = write_model(tmp_path / "tiny", bert(), tokenizer=tokenizer)
    _refused_or_set_aside(lambda: embed(MIXED, folder), tmp_path / "run", alone(folder, MIXED), set())


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One word of it is too large for float16, and not for float32."""
    folder = write_model(tmp_path_factory.mktemp("models") / "overflowing", bert())
    _scale_word(folder, SPOILT, 1e8)
    return folder


def _scale_word(folder: Path, word: str, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    [token] = PIECES.encode(word, add_special_tokens=False).ids
    weights["embeddings.word_embeddings.weight"][token] *= factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


HALVES = ["padded float16", "packed float16", GPU]
SPOILT_ROWS = (3, 11, 24)


def _some_spoilt() -> list[str]:
    texts = [*MIXED, *MIXED]
    for i in SPOILT_ROWS:
        texts[i] = f"the {SPOILT} died"
    return texts


@in_ways(HALVES)
def test_rows_that_overflow_in_half_precision_are_done_again_in_float32(embed: Embed, overflowing: Path) -> None:
    texts = _some_spoilt()
    check(embed(texts, overflowing), alone(overflowing, texts))


@in_ways(HALVES)
def test_rows_done_again_in_float32_are_said(embed: Embed, overflowing: Path) -> None:
    said = [note for note in notes(embed(_some_spoilt(), overflowing))[1:] if "float32" in note]
    assert len(said) == 1, "the worker's record says nothing of rows done again in float32"
    assert str(len(SPOILT_ROWS)) in said[0]


@in_ways(HALVES)
def test_nothing_is_said_where_nothing_was_done_again(embed: Embed, overflowing: Path) -> None:
    assert len(notes(embed(MIXED, overflowing))) == 1


@in_ways(HALVES)
def test_every_row_overflows_in_half_precision(embed: Embed, overflowing: Path) -> None:
    texts = [f"{text} {SPOILT}" for text in MIXED]
    check(embed(texts, overflowing), alone(overflowing, texts))


@in_ways(HALVES)
def test_rows_that_overflow_in_float32_too_are_set_aside(embed: Embed, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", bert())
    _scale_word(folder, SPOILT, float("inf"))
    texts = _some_spoilt()
    plain = [text.replace(SPOILT, "train") for text in texts]
    check(embed(texts, folder), alone(folder, plain), dict.fromkeys(SPOILT_ROWS, "NaN or infinity"))


# Memory.


class Shortage:
    """Memory runs out at the calls that `at` says: given the number of the call, from 0, and how many texts it has."""

    def __init__(self, engine: OneWorker, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: Callable[[int, int], bool] = lambda call, texts: False
        self.calls = self.times = 0
        self._armed = False
        engine.steps.append(self._arm)
        if where == "model":
            module: Any = torch.nn.modules.module
            hook = module.register_module_forward_pre_hook(self._before_model)
            monkeypatch.setattr(self, "end", hook.remove)
        else:
            self._patch_task(where, monkeypatch)

    def end(self) -> None:
        self._armed = False

    def disarm(self) -> None:
        """Until the next run is at work: what it tries before that does not count."""
        self.calls = self.times = 0
        self._armed = False

    def _arm(self) -> None:
        self._armed = True

    def _now(self, texts: int) -> bool:
        if not self._armed:
            return False
        short = self.at(self.calls, texts)
        self.calls += 1
        self.times += short
        return short

    def _before_model(self, module: Any, inputs: Any) -> None:
        if isinstance(module, transformers.PreTrainedModel) and self._now(0):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def _patch_task(self, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = EmbedTask.begin

        def fail() -> Any:
            raise DeviceOutOfMemory("The batch does not fit, the test says.")

        def short(task: EmbedTask, inputs: Sequence[Any]) -> Any:
            if not self._now(len(inputs)):
                return begin(task, inputs)
            return fail() if where == "begin" else fail

        monkeypatch.setattr(EmbedTask, "begin", short)


MakeShortage = Callable[[str], Shortage]


@pytest.fixture
def shortage(engine: OneWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShortage]:
    made: list[Shortage] = []

    def make(where: str) -> Shortage:
        made.append(Shortage(engine, where, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        each.end()


# Eight tokens each: whole batches of eight texts, of four and of two.
EIGHTS = [f"word word word word word {letter}" for letter in "abcdefghijklmnopqrst"] * 2


def _batches_run(embed: Embed, short: Shortage, texts: Sequence[str], model: Path) -> int:
    """How many calls a run without trouble makes."""
    embed(texts, model, "calm", batch_tokens=64, shard_bytes=1_000_000)
    return short.calls


def _short_at(embed: Embed, short: Shortage, calls: range, texts: Sequence[str], model: Path) -> Run:
    short.disarm()
    short.at = lambda call, texts: call in calls
    run = embed(texts, model, f"short-{calls[0]}", batch_tokens=64, shard_bytes=1_000_000)
    short.at = lambda call, texts: False
    return run


def _short_at_any(embed: Embed, engine: OneWorker, model: Path, short: Shortage, times: int) -> None:
    batches = _batches_run(embed, short, EIGHTS, model)
    assert batches == 5
    for k in range(batches):
        engine.budgets.clear()
        run = _short_at(embed, short, range(k, k + times), EIGHTS, model)
        assert short.times == times
        check(run, alone(model, EIGHTS))
        assert engine.worker.runner.budget.now in (32, 16)
        assert max(engine.budgets) == 64


@in_ways(["packed float16", GPU])
@pytest.mark.parametrize("where", ["begin", "fetch", "model"])
def test_memory_runs_out_at_any_batch(
    embed: Embed, engine: OneWorker, tiny_bert: Path, shortage: MakeShortage, where: str
) -> None:
    _short_at_any(embed, engine, tiny_bert, shortage(where), times=1)


@in_ways(["padded float32", GPU])
@pytest.mark.parametrize("where", ["begin", "fetch", "model"])
def test_memory_runs_out_twice_in_a_row_at_any_batch(
    embed: Embed, engine: OneWorker, tiny_bert: Path, shortage: MakeShortage, where: str
) -> None:
    _short_at_any(embed, engine, tiny_bert, shortage(where), times=2)


@in_ways(["packed float16", GPU])
@pytest.mark.parametrize("where", ["begin", "fetch", "model"])
def test_memory_runs_out_once_at_a_text_alone_in_its_batch(
    embed: Embed, tiny_bert: Path, shortage: MakeShortage, where: str
) -> None:
    """Whoever had the memory may have given it back: the batch before, if no one else. It is worth another try."""
    texts = ["word " * 60, *MIXED[:4], "word " * 50]
    short = shortage(where)
    for k in range(_batches_run(embed, short, texts, tiny_bert)):
        check(_short_at(embed, short, range(k, k + 1), texts, tiny_bert), alone(tiny_bert, texts))


@in_ways(FEW_WAYS)
@pytest.mark.parametrize("where", ["begin", "fetch"])
def test_memory_for_one_text_at_a_time(
    embed: Embed, engine: OneWorker, tiny_bert: Path, shortage: MakeShortage, where: str
) -> None:
    short = shortage(where)
    short.at = lambda call, texts: texts > 1
    texts = [*MIXED, *EIGHTS]
    check(embed(texts, tiny_bert, batch_tokens=256), alone(tiny_bert, texts))
    assert short.times > 1
    assert min(engine.budgets) < 32


@in_ways(["padded float32", GPU])
def test_memory_that_was_short_is_used_again(
    embed: Embed, engine: OneWorker, tiny_bert: Path, shortage: MakeShortage
) -> None:
    """The budget falls by half, and is back where it began after some hundred batches without trouble."""
    short = shortage("begin")
    short.at = lambda call, texts: call == 4
    texts = ["the battery died"] * 700
    run = embed(texts, tiny_bert, batch_tokens=20, shard_bytes=1_000_000)
    check(run, alone(tiny_bert, texts))
    assert short.times == 1
    assert engine.budgets[0] == 20
    assert min(engine.budgets) == 10
    assert run.ledger.workers.read()[0]["batch_budget"] == 20
    lowest = engine.budgets.index(min(engine.budgets))
    assert engine.budgets[lowest:] == sorted(engine.budgets[lowest:])


@in_ways(["padded float16", "packed float16"])
def test_memory_runs_out_while_a_row_is_done_again(embed: Embed, overflowing: Path, shortage: MakeShortage) -> None:
    texts = [*["the train left"] * 6, f"the {SPOILT} left", *["an hour"] * 5, f"{SPOILT} train", *["a"] * 10]
    short = shortage("model")
    calls = _batches_run(embed, short, texts, overflowing)
    for k in range(calls):
        run = _short_at(embed, short, range(k, k + 1), texts, overflowing)
        check(run, alone(overflowing, texts))
        assert "2 texts" in notes(run)[1]


HOLD = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(eval(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold_gpu() -> Iterator[Callable[[str], None]]:
    """Another process takes memory of the GPU: as much as an expression of `free` and `total` says."""
    holders: list[subprocess.Popen[str]] = []

    def hold(how_much: str) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, how_much], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            unavailable("the GPU's memory could not be taken: is it in use?")

    yield hold
    for holder in holders:
        holder.kill()
        holder.communicate()


@pytest.mark.gpu
@pytest.mark.parametrize("how_much", ["0.6 * total", "free - (4 << 30)"], ids=["half taken", "4 GiB left"])
def test_a_gpu_that_another_process_is_on(
    tmp_path: Path, tiny_bert: Path, write_jsonl: Write, hold_gpu: Callable[[str], None], how_much: str
) -> None:
    hold_gpu(how_much)
    texts = [*EIGHTS, *MIXED, LONG] * 40
    source = write_jsonl(rows_of(texts))
    options: dict[str, Any] = {"text": "text", "id": "id", "model": str(tiny_bert), "device": "cuda"}
    run = shardmill.embed(str(source), out=tmp_path / "run", **options)
    check(run, alone(tiny_bert, texts))
    assert {w["device"] for w in run.ledger.workers.read()} == {torch.cuda.get_device_name()}


@in_ways([GPU])
def test_a_gpu_with_room_for_small_batches_only(embed: Embed, engine: OneWorker, tiny_bert: Path) -> None:
    """Memory really runs out, in torch's allocator."""
    texts = [*MIXED, LONG] * 2_000
    embed(texts, tiny_bert, "roomy")
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)
    try:
        run = embed(texts, tiny_bert, batch_tokens=1 << 22, shard_bytes=1 << 30)
        check(run, alone(tiny_bert, texts))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert min(engine.budgets) < 1 << 22
