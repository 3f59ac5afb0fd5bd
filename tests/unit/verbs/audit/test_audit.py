"""Vectors that sentence-transformers made with a tiny model, rightly and wrongly: each fault is named, and no other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardmill as package
from shardmill.verbs.audit.report import Audit, AuditCause
from tests.support.audited import as_bfloat16, unit, write_vectors
from tests.support.cli import Cli
from tests.support.libraries import needed
from tests.support.tiny_models import bert, byte_level_bpe, fast, pooling, torch, write_model

SentenceTransformer = needed("sentence_transformers").SentenceTransformer
quantize = needed("sentence_transformers.util").quantize_embeddings

ROWS = 120
PROMPTS = {"query": "query: ", "document": "passage: "}
WORDS = (
    *("battery", "Charger", "cable", "Leather", "case", "colour", "Bluetooth", "headset", "sound"),
    *("Screen", "bubbles", "hour", "box", "Lyon", "train", "depth"),
)
Vectors = NDArray[Any]


@cache
def texts() -> list[str]:
    """Different texts of 3 to 40 words, some in capitals, some with line breaks."""
    draw = random.Random(3)
    return [
        f"No {i}" + "".join(draw.choice((" ", " ", "\n")) + draw.choice(WORDS) for _ in range(draw.randint(3, 40)))
        for i in range(ROWS)
    ]


def write_tiny(folder: Path, scale: float = 4) -> Path:
    tokenizer = fast(byte_level_bpe(), pad_token="<|endoftext|>")
    whole = {"prompts": PROMPTS, "default_prompt_name": "document"}
    modules = [pooling("mean"), ("Normalize", {}, {})]
    return write_model(folder, bert(vocab_size=600), modules, whole=whole, tokenizer=tokenizer, scale=scale)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


def encode(folder: Path, rows: list[str] | None = None, limit: int = 64, **how: Any) -> Vectors:
    peer = SentenceTransformer(str(folder), device="cpu")
    peer.max_seq_length = limit
    made: Vectors = peer.encode(rows or texts(), show_progress_bar=False, **how)
    return made


def tokens(folder: Path) -> list[Vectors]:
    return [each.numpy() for each in encode(folder, output_value="token_embeddings")]


@pytest.fixture(scope="module")
def right(model: Path) -> Vectors:
    return encode(model)


@pytest.fixture
def audit(tmp_path: Path, model: Path) -> Callable[..., Audit]:
    def call(vectors: Any, **options: Any) -> Audit:
        path = write_vectors(tmp_path / "vectors.parquet", texts(), vectors)
        return package.audit(str(path), **{"text": "body", "model": str(model), "sample": 60, **options})

    return call


def look(source: Path, **options: Any) -> Audit:
    return package.audit(str(source), **options)


def only(found: Audit) -> AuditCause:
    """The one cause of what is wrong."""
    assert not found.right
    (cause,) = found.causes
    return cause


PRECISIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "float32": lambda v: v,
    "float16": lambda v: v.astype(np.float16),
    "float64": lambda v: v.astype(np.float64),
    "bfloat16": as_bfloat16,
    "int8": lambda v: quantize(v, "int8"),
    "uint8": lambda v: quantize(v, "uint8"),
    "int8 by one scale": lambda v: np.rint(v * 127).astype(np.int8),
    "bits": lambda v: quantize(v, "ubinary"),
    "bits as int8": lambda v: quantize(v, "binary"),
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_right_vectors_give_no_alarm_in_any_precision(
    audit: Callable[..., Audit], right: Vectors, precision: str
) -> None:
    found = audit(PRECISIONS[precision](right))
    assert found.right, found


@pytest.mark.parametrize(("mode", "pick"), [("cls", 0), ("lasttoken", -1)])
def test_another_pooling(audit: Callable[..., Audit], model: Path, mode: str, pick: int) -> None:
    cause = only(audit(unit(np.stack([each[pick] for each in tokens(model)]))))
    assert (cause.name, cause.share, cause.first, cause.last) == ("pooling", 1.0, 0, ROWS - 1)
    assert f"pooled by {mode}, not mean" in cause.seen
    assert cause.again_s is not None


@pytest.mark.parametrize(("prompt", "said"), [("", "without the prompt 'passage: '"), ("query: ", "'query: '")])
def test_another_prompt(audit: Callable[..., Audit], model: Path, prompt: str, said: str) -> None:
    cause = only(audit(encode(model, prompt=prompt)))
    assert cause.name == "prompt"
    assert said in cause.seen


def test_the_prompt_that_is_named_is_right(audit: Callable[..., Audit], model: Path) -> None:
    assert audit(encode(model, prompt="query: "), prompt="query").right


def test_another_cut_concerns_long_texts_only(audit: Callable[..., Audit], model: Path) -> None:
    cause = only(audit(encode(model, limit=32)))
    assert cause.name == "cut"
    assert "cut at 32 tokens, not at 64" in cause.seen
    assert 0 < cause.share < 1


def test_lower_cased_texts(audit: Callable[..., Audit], model: Path) -> None:
    cause = only(audit(encode(model, [text.lower() for text in texts()])))
    assert cause.seen == "texts were lower-cased"


def test_line_breaks_replaced(audit: Callable[..., Audit], model: Path) -> None:
    cause = only(audit(encode(model, [" ".join(text.split()) for text in texts()])))
    assert cause.name == "blanks"


def test_no_normalization_is_repaired_without_the_model(audit: Callable[..., Audit], model: Path) -> None:
    cause = only(audit(np.stack([each.mean(axis=0) for each in tokens(model)])))
    assert (cause.name, cause.rows, cause.again_s) == ("normalization", ROWS, None)


def test_fewer_dimensions(audit: Callable[..., Audit], right: Vectors) -> None:
    cut = unit(right[:, :16])
    assert only(audit(cut)).name == "dims"
    assert audit(cut, dims=16).right


@pytest.mark.parametrize("first", [20, 47, 101])
def test_the_border_of_what_another_model_made(
    audit: Callable[..., Audit], right: Vectors, tmp_path: Path, first: int
) -> None:
    other = encode(write_tiny(tmp_path / "other", scale=2.5))
    cause = only(audit(np.concatenate([right[:first], other[first:]])))
    assert cause.name in ("model", "revision", "other")
    assert (cause.first, cause.last, cause.rows) == (first, ROWS - 1, ROWS - first)


def test_a_part_in_the_middle_with_another_pooling(audit: Callable[..., Audit], model: Path, right: Vectors) -> None:
    part = right.copy()
    part[40:81] = unit(np.stack([each[0] for each in tokens(model)]))[40:81]
    cause = only(audit(part))
    assert (cause.name, cause.first, cause.last) == ("pooling", 40, 80)


@pytest.mark.parametrize("shift", [1, -7])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_shifted_rows(audit: Callable[..., Audit], right: Vectors, shift: int, precision: str) -> None:
    cause = only(audit(np.roll(PRECISIONS[precision](right), shift, axis=0)))
    assert cause.name == "shifted"
    assert f"shifted by {abs(shift)}" in cause.seen
    assert cause.again_s is None


def test_a_row_that_was_lost_shifts_those_after_it(audit: Callable[..., Audit], right: Vectors) -> None:
    moved = right.copy()
    moved[70:-1] = right[71:]
    cause = only(audit(moved[:-1].repeat([1] * (ROWS - 2) + [2], axis=0)))
    assert (cause.name, cause.first) == ("shifted", 70)


def test_shuffled_rows(audit: Callable[..., Audit], right: Vectors) -> None:
    cause = only(audit(right[np.random.default_rng(5).permutation(ROWS)]))
    assert cause.name == "shuffled"


def test_another_revision(audit: Callable[..., Audit], model: Path, tmp_path: Path) -> None:
    peer = SentenceTransformer(str(model), device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in peer.parameters():
            weights.add_(torch.randn_like(weights) * weights.std(correction=0) * 0.05)
    peer.max_seq_length = 64
    assert only(audit(peer.encode(texts(), show_progress_bar=False))).name == "revision"


def test_two_causes_at_once(audit: Callable[..., Audit], model: Path, right: Vectors) -> None:
    both = right.copy()
    both[:50] = encode(model, prompt="")[:50]
    both[80:] = np.random.default_rng(2).permutation(unit(np.stack([each[0] for each in tokens(model)]))[80:])
    found = audit(both)
    assert found.causes[0].name == "prompt"
    assert (found.causes[0].first, found.causes[0].last) == (0, 49)
    assert len(found.causes) == 2


def failed(found: Audit) -> dict[str, str]:
    return {check.name: check.seen for check in found.checks if not check.ok}


def test_the_scan_needs_no_model(tmp_path: Path, right: Vectors) -> None:
    broken = right.copy()
    broken[3, 5] = np.nan
    broken[4:6] = np.inf
    broken[7] = 0
    broken[60] = broken[61]
    path = write_vectors(tmp_path / "vectors.parquet", texts(), broken)
    wrong = failed(package.audit(str(path), text="body"))
    assert wrong["numbers"] == ("row 3 has NaN; 2 of 120 rows (4 to 5) have infinity; row 7 has only zeros")
    assert "60 and 61" in wrong["doubles"]
    assert set(wrong) == {"numbers", "doubles"}


def test_equal_vectors_of_texts_that_are_equal_to_the_model(tmp_path: Path, model: Path) -> None:
    """Two texts that differ only after the cut have one vector, rightly."""
    long = "word " * 90
    rows = [*texts(), long + "a", long + "b"]
    path = write_vectors(tmp_path / "vectors.parquet", rows, encode(model, rows))
    assert package.audit(str(path), text="body", model=str(model)).right


def test_mixed_dimensions_and_missing_vectors(tmp_path: Path, right: Vectors) -> None:
    rows: list[Any] = [list(map(float, each)) for each in right]
    rows[10], rows[20] = rows[10][:16], None
    wrong = failed(package.audit(str(write_vectors(tmp_path / "vectors.parquet", texts(), rows)), text="body"))
    assert wrong["dims"] == "mixed: 118 rows have 32 dimensions (first row 0), 1 rows have 16 dimensions (first row 10)"
    assert wrong["rows"] == "row 20 has no vector"


def test_mixed_lengths(tmp_path: Path, right: Vectors) -> None:
    mixed = right.copy()
    mixed[90:] *= 3
    wrong = failed(package.audit(str(write_vectors(tmp_path / "vectors.parquet", texts(), mixed)), text="body"))
    assert wrong["lengths"] == "mixed: 30 of 120 rows (90 to 119) are not normalized, the others are"


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(texts())))
    return path


def test_a_matrix_beside_a_file(jsonl: Path, tmp_path: Path, model: Path, right: Vectors) -> None:
    np.save(tmp_path / "vectors.npy", np.roll(right, 2, axis=0))
    found = look(jsonl, text="body", vectors=tmp_path / "vectors.npy", model=str(model), sample=60)
    assert only(found).name == "shifted"
    assert look(tmp_path / "vectors.npy").right


def test_vectors_as_lists_in_json(tmp_path: Path, model: Path, right: Vectors) -> None:
    path = tmp_path / "both.jsonl"
    rows = ({"body": text, "embedding": list(map(float, v))} for text, v in zip(texts(), right, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert look(path, text="body", model=str(model), sample=60).right


def test_a_run_is_audited_by_its_own_model(jsonl: Path, tmp_path: Path, model: Path, shardmill: Cli) -> None:
    run = tmp_path / "run"
    package.embed(str(jsonl), text="body", model=str(model), out=run, device="cpu", workers=1)
    said = shardmill("audit", run, "--sample", 40)
    assert (said.status, "Right: 120 vectors of 32 float32" in said.out) == (0, True), said
    assert "40 of 120 rows recomputed" in said.out


def test_a_run_of_the_default_model_is_audited_by_it(jsonl: Path, tmp_path: Path, shardmill: Cli) -> None:
    run = tmp_path / "run"
    package.embed(str(jsonl), text="body", out=run, device="cpu", workers=1)
    said = shardmill("audit", run, "--sample", 10)
    assert (said.status, "10 of 120 rows recomputed" in said.out) == (0, True), said


def test_what_is_wrong_is_printed_and_is_the_status(
    tmp_path: Path, model: Path, right: Vectors, shardmill: Cli
) -> None:
    path = write_vectors(tmp_path / "vectors.parquet", texts(), np.roll(right, 1, axis=0))
    said = shardmill("audit", path, "--text", "body", "--model", model, "--sample", 40)
    assert said.status == 1
    assert "Cause: rows are shifted by 1" in said.out
    assert "NOT right: 120 vectors" in said.out
    told = json.loads(shardmill("audit", path, "--text", "body", "--model", model, "--sample", 40, "--json").out)
    assert told["causes"][0]["name"] == "shifted"


def refused(call: Callable[[], object]) -> str:
    """What a refusal says: one line, and the next step."""
    with pytest.raises(package.UsageError) as caught:
        call()
    message, _, hint = str(caught.value).partition("\n")
    assert message, hint
    assert hint
    return str(caught.value)


def test_bad_input_is_refused_with_the_next_step(
    tmp_path: Path, jsonl: Path, model: Path, right: Vectors, audit: Callable[..., Audit]
) -> None:
    assert "no column 'bodi'" in refused(lambda: audit(right, text="bodi"))
    assert "no column" in refused(lambda: audit(right, column="vector"))
    assert "is no vector" in refused(lambda: audit(right, column="id"))
    assert "needs the texts" in refused(lambda: audit(right, text=None))
    assert "64 dimensions; tiny makes 32" in refused(lambda: audit(np.hstack([right, right])))
    assert "is given without" in refused(lambda: audit(right, model=None, prompt="query"))
    np.save(tmp_path / "short.npy", right[:-3])
    short = {"text": "body", "vectors": tmp_path / "short.npy"}
    assert "117 vectors" in (said := refused(lambda: look(jsonl, **short)))
    assert "120 rows" in said
    np.save(tmp_path / "long.npy", np.vstack([right, right]))
    assert "240 vectors" in refused(lambda: look(jsonl, text="body", vectors=tmp_path / "long.npy"))
    np.save(tmp_path / "flat.npy", right[0])
    assert "shape (32,)" in refused(lambda: look(tmp_path / "flat.npy"))
    assert "no texts" in refused(lambda: look(tmp_path / "short.npy", text="body"))
    np.save(tmp_path / "empty.npy", right[:0])
    assert "no rows" in refused(lambda: look(tmp_path / "empty.npy"))
    (tmp_path / "empty.jsonl").write_text("")
    refused(lambda: look(tmp_path / "empty.jsonl", text="body", vectors=tmp_path / "empty.npy"))
    refused(lambda: look(jsonl, text="body"))
    refused(lambda: look(tmp_path / "nowhere.parquet"))


def test_vectors_of_another_text_say_so(audit: Callable[..., Audit], model: Path) -> None:
    """A text column that exists, but was not embedded."""
    other = [" ".join(reversed(text.split())) + " more" for text in texts()[::-1]]
    cause = only(audit(encode(model, other)))
    assert "--text" in cause.remedy or cause.name in ("revision", "model")
