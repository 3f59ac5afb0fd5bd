"""The embed task over a tiny random model: lengths, null rows, bad rows, memory, precision."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError, SpecError
from shardmill.tasks.base import Task
from shardmill.verbs.embed.task import EmbedTask
from tests.support.tiny_models import MINILM, needed, torch, transformers

CPU = Device("cpu", "cpu", threads=2, precise=True)


safetensors = needed("safetensors.torch")
POISON = "poison"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(1)
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.BertModel(config).save_pretrained(root)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "modules.json"):
        shutil.copy(MINILM / name, root / name)
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 16, "pooling_mode": "mean"}')
    (root / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    return root


@pytest.fixture(scope="module")
def task(folder: Path) -> EmbedTask:
    made = EmbedTask(model=str(folder))
    made.open(CPU)
    return made


@pytest.fixture(scope="module")
def with_torch(folder: Path) -> EmbedTask:
    made = EmbedTask(model=str(folder))
    made.open(replace(CPU, reference=True))
    return made


def spoil(folder: Path, target: Path, value: float) -> Path:
    """A copy of the model that gives `value` for the one word POISON."""
    shutil.copytree(folder, target)
    weights = safetensors.load_file(target / "model.safetensors")
    ids = transformers.AutoTokenizer.from_pretrained(target)(POISON)["input_ids"]
    weights["embeddings.word_embeddings.weight"][ids[1]] = value
    safetensors.save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_is_a_task(task: EmbedTask) -> None:
    assert isinstance(task, Task)
    assert task.notes[0].startswith("Kernel: openvino f32")
    assert task.output == pa.schema([pa.field("embedding", pa.list_(pa.float32(), 16))])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"dims": 0}, "dims"),
        ({"dtype": "int4"}, "dtype"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"modle": "x"}, r"(?s)modle.*Its parameters are adapter, model, prompt, max_tokens"),
        ({"model": ""}, "model"),
        ({"dims": 0, "dtype": "int4"}, r"dims.*dtype"),
    ],
)
def test_wrong_params(params: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        EmbedTask(**params)


def test_too_many_dims_and_too_few_tokens(folder: Path) -> None:
    with pytest.raises(ModelError, match="16 dimensions, not 17"):
        _ = EmbedTask(model=str(folder), dims=17).output
    with pytest.raises(ModelError, match="no room"):
        EmbedTask(model=str(folder), max_tokens=2).prepare(["a"])


def test_no_torch_until_opened(folder: Path) -> None:
    program = (
        "import sys\nfrom shardmill.verbs.embed.task import EmbedTask\n"
        "t = EmbedTask(model=sys.argv[1]); t.fingerprint(); t.output; t.batch_budget\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules), 'loaded early'"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)


def test_nothing_is_printed(folder: Path) -> None:
    program = (
        "import sys\nfrom shardmill.verbs.embed.task import EmbedTask\nfrom shardmill.core.devices import Device\n"
        "t = EmbedTask(model=sys.argv[1]); t.open(Device('cpu', 'cpu', 1)); t.run(t.prepare(['a ' * 999, 'b']).inputs)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_prepare_counts(task: EmbedTask) -> None:
    prepared = task.prepare(["one two", None, "", "word " * 100, "bad \ud800"])
    assert prepared.costs.tolist() == [4, 0, 2, 64, 0]
    assert (prepared.tokens, prepared.truncated) == (70, 1)
    assert len(prepared.inputs[1]) == 0
    assert prepared.bad == {4: "the text is not valid Unicode"}
    assert prepared.inputs[0].dtype == np.int32


def test_prepare_of_nothing(task: EmbedTask) -> None:
    assert task.prepare([]).tokens == 0
    assert task.prepare([None]).costs.tolist() == [0]
    assert task.run([]).rows.num_rows == 0


def whole_ids(task: EmbedTask, text: str) -> list[int]:
    """What the tokenizer library itself makes of the whole text, cut by itself."""
    made = transformers.AutoTokenizer.from_pretrained(task.folder.transformer)
    ids: list[int] = made(text, truncation=True, max_length=64)["input_ids"]
    return ids


WORDS = ["the", "running", "embeddings", ",", ".", "漢字", "naïve", "zzxqj", "don't", "[SEP]", "éa\u0301", "\u200b"]


@pytest.mark.parametrize(
    "text",
    [
        " ".join(random.Random(1).choices(WORDS, k=300_000)),
        " " * 2_000_000,
        "a" * 2_000_000,
        " " * 1_000_000 + "late words " * 100,
        "x" * 4_100 + " and then words" * 1_000,
        "漢" * 500_000,
        ("y" * 4_090 + " tail ") * 3,
    ],
    ids=["words", "blanks", "one word", "late", "long word first", "han", "cut at a word"],
)
def test_huge_texts_give_the_ids_of_the_whole(task: EmbedTask, text: str) -> None:
    assert task.prepare([text]).inputs[0].tolist() == whole_ids(task, text)


@pytest.mark.parametrize("seed", range(40))
def test_heads_give_the_ids_of_the_whole(task: EmbedTask, seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(
        chance.choice(WORDS) + chance.choice([" ", "", "\n", " " * chance.randrange(900)]) for _ in range(400)
    )
    assert task.prepare([text]).inputs[0].tolist() == whole_ids(task, text)


@pytest.mark.parametrize("wordwise", [True, False])
def test_only_the_head_of_a_huge_text_is_read(task: EmbedTask, monkeypatch: pytest.MonkeyPatch, wordwise: bool) -> None:
    read = []
    tokenizer = task.encoder.tokenizer
    backend, words = tokenizer._backend, tokenizer._words
    assert words is not None

    class Watched:
        def encode(self, texts: Any, **options: Any) -> Any:
            read.append(len(texts[0] if wordwise else texts))
            return words.encode(texts) if wordwise else backend.encode(texts, **options)

    monkeypatch.setattr(tokenizer, "_words", Watched() if wordwise else None)
    monkeypatch.setattr(tokenizer, "_backend", backend if wordwise else Watched())
    assert task.prepare(["many words " * 5_000_000]).truncated == 1
    assert len(read) == 1
    assert read[0] <= 4096


def test_run_pads_without_changing_a_row(task: EmbedTask) -> None:
    inputs = task.prepare(["a", "some longer text, with words", "word " * 50]).inputs
    together = np.stack(task.run(inputs).rows["embedding"].to_numpy(zero_copy_only=False))
    alone = np.stack([task.run([i]).rows["embedding"].to_numpy(zero_copy_only=False)[0] for i in inputs])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_dims_and_float16(folder: Path) -> None:
    made = EmbedTask(model=str(folder), dims=5, dtype="float16")
    made.open(CPU)
    output = made.run(made.prepare(["some text"]).inputs)
    assert output.rows.schema == made.output
    assert output.rows.schema.field("embedding").type == pa.list_(pa.float16(), 5)
    vector = output.rows["embedding"].flatten().to_numpy()
    assert np.linalg.norm(vector.astype(np.float32)) == pytest.approx(1, abs=1e-3)


def test_a_row_of_nan_is_null_and_its_neighbours_are_not(folder: Path, tmp_path: Path, task: EmbedTask) -> None:
    made = EmbedTask(model=str(spoil(folder, tmp_path / "nan", float("nan"))))
    made.open(CPU)
    output = made.run(made.prepare(["fine", POISON, "also fine"]).inputs)
    assert output.bad == {1: "the model gave NaN or infinity for this text"}
    assert output.rows["embedding"].is_null().to_pylist() == [False, True, False]
    same = task.run(task.prepare(["fine", "x", "also fine"]).inputs)
    assert output.rows["embedding"][2].as_py() == pytest.approx(same.rows["embedding"][2].as_py(), abs=1e-6)


def test_a_value_too_large_for_float16(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = EmbedTask(model=str(folder), dtype="float16")
    made.open(CPU)
    vectors = np.ones((2, 16), np.float32)
    vectors[1, 3] = 1e6
    monkeypatch.setattr(made.encoder._kernel, "begin", lambda rows, skip: lambda: vectors)
    output = made.run(made.prepare(["a", "b"]).inputs)
    assert output.bad == {1: "the vector does not fit in float16"}
    assert output.rows["embedding"].null_count == 1


def test_a_row_that_low_precision_spoils_is_done_again_in_float32(
    folder: Path, task: EmbedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EmbedTask(model=str(folder))
    made.open(CPU)
    kernel: Any = made.encoder._kernel
    kernel.precision = "bfloat16"
    begin = made.encoder._kernel.begin

    def spoilt(rows: Any, skip: int) -> Any:
        vectors = begin(rows, skip)()
        vectors[1] = np.nan
        return lambda: vectors

    monkeypatch.setattr(made.encoder._kernel, "begin", spoilt)
    inputs = made.prepare(["a", "b", "c"]).inputs
    output = made.run(inputs)
    assert output.bad == {}
    exact = task.run(inputs).rows["embedding"][1].as_py()
    assert output.rows["embedding"][1].as_py() == pytest.approx(exact, abs=1e-5)


def test_a_failed_check_falls_back_and_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shardmill.models.choosing.agree", lambda *compared, **how: False)
    made = EmbedTask(model=str(folder))
    made.open(Device("cpu", "cpu", threads=2))
    assert made.notes[0].startswith("Kernel: numpy float32 (openvino ")
    assert "gave different vectors" in made.notes[0]
    assert made.run(made.prepare(["a"]).inputs).bad == {}


def test_a_model_of_nan_is_refused(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "broken"
    shutil.copytree(folder, target)
    weights = safetensors.load_file(target / "model.safetensors")
    safetensors.save_file(
        {k: v * float("nan") for k, v in weights.items()}, target / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ModelError, match="NaN"):
        EmbedTask(model=str(target)).open(CPU)


def test_missing_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "part"
    shutil.copytree(folder, target)
    weights = safetensors.load_file(target / "model.safetensors")
    del weights["embeddings.LayerNorm.weight"]
    safetensors.save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"part lacks weights: embeddings\.LayerNorm\.weight\."):
        EmbedTask(model=str(target)).open(CPU)


def test_code_of_a_model_is_never_run(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "custom"
    shutil.copytree(folder, target)
    config = (
        '{"model_type": "mine", "hidden_size": 16, "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.M"}}'
    )
    (target / "config.json").write_text(config)
    (target / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match=r"code of its own|tokenizer"):
        EmbedTask(model=str(target)).open(CPU)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory(with_torch: EmbedTask, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(**_: Any) -> None:
        raise error

    assert with_torch.encoder._kernel is not None
    monkeypatch.setattr(with_torch.encoder._kernel, "_model", fail)
    with pytest.raises(DeviceOutOfMemory):
        with_torch.run(with_torch.prepare(["a"]).inputs)


def test_other_errors_pass(with_torch: EmbedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("something else")

    assert with_torch.encoder._kernel is not None
    monkeypatch.setattr(with_torch.encoder._kernel, "_model", fail)
    with pytest.raises(RuntimeError, match="something else"):
        with_torch.run(with_torch.prepare(["a"]).inputs)


def test_a_query_of_the_default_kind(task: EmbedTask) -> None:
    expected = task.run(task.prepare(["what is it?"]).inputs).rows["embedding"][0].as_py()
    assert task.embed_query("what is it?").tolist() == pytest.approx(expected, abs=1e-6)
