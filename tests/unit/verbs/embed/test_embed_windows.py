"""Windows of tokens: they cover the text, overlap as asked, never cut a character, and are what the library cuts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SpecError
from shardmill.tasks.base import Prepared
from shardmill.verbs.embed.task import EmbedTask
from shardmill.verbs.embed.windows import cut
from tests.support.tiny_models import (
    MINILM,
    bert,
    byte_level_bpe,
    fast,
    pooling,
    qwen3,
    tokenizers,
    transformers,
    unigram,
    write_model,
    xlm_roberta,
)

PROMPT = "Represent naïve text: "


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    bpe, pieces = byte_level_bpe(), unigram()
    bpe_config = qwen3(vocab_size=bpe.get_vocab_size())
    pieces_config = xlm_roberta(vocab_size=pieces.get_vocab_size(), pad_token_id=1)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    limit = {"max_seq_length": 200}
    made = fast(bpe, eos_token="<|endoftext|>")
    return {
        "words": MINILM,
        "bpe": write_model(root / "bpe", bpe_config, [pooling("mean")], limit, tokenizer=made),
        "unigram": write_model(root / "xlmr", pieces_config, [pooling("mean")], limit, tokenizer=fast(pieces, **names)),
    }


@pytest.fixture(params=["words", "bpe", "unigram"])
def folder(folders: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return folders[request.param]


made_tasks: dict[Any, EmbedTask] = {}


def task_of(folder: Path, window: int, overlap: int, prompt: str = "") -> EmbedTask:
    key = (folder, window, overlap, prompt)
    if key not in made_tasks:
        extra = {"prompt": prompt} if prompt else {}
        made_tasks[key] = EmbedTask(model=str(folder), window_tokens=window, overlap=overlap, **extra)
    return made_tasks[key]


def by_text(prepared: Prepared, texts: int) -> list[list[Any]]:
    assert prepared.owners is not None
    assert len(prepared.owners) == len(prepared.inputs) == len(prepared.costs)
    found: list[list[Any]] = [[] for _ in range(texts)]
    for owner, window, cost in zip(prepared.owners, prepared.inputs, prepared.costs, strict=True):
        assert cost == len(window.ids)
        found[owner].append(window)
    return found


characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("aeiou .,\n\t漢字かな\u0301\u200b\x00🙂👩‍👧½ﬁﷺİßé"),
)
UNITS = ["漢", "🙂", "e\u0301", "a b", "word ", "\x00x", "ﷺ", "  \n"]
words = st.lists(st.text(characters, max_size=12), max_size=8)
texts = st.lists(
    st.one_of(
        st.none(),
        st.text(characters, max_size=150),
        st.builds(lambda parts, times: " ".join(parts * times), words, st.integers(1, 6)),
        st.builds(lambda unit, times: unit * times, st.sampled_from(UNITS), st.integers(1, 80)),
    ),
    min_size=1,
    max_size=4,
)
sizes = st.sampled_from([(18, 0), (18, 5), (20, 1), (40, 12), (31, 18)])
quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(batch=texts, size=sizes, prompt=st.sampled_from(["", "", PROMPT]))
def test_windows_cover_every_text(folder: Path, batch: list[str | None], size: tuple[int, int], prompt: str) -> None:
    """Spans and ids of any text: no gap, no id lost or made up, none over the limit, no character cut."""
    window_tokens, overlap = size if not prompt else (size[0] + 20, size[1])
    task = task_of(folder, window_tokens, overlap, prompt)
    tokenizer = task.encoder.tokenizer
    prepared = task.prepare(batch)
    for text, windows in zip(batch, by_text(prepared, len(batch)), strict=True):
        if text is None:
            assert not windows
            continue
        whole = tokenizer._backend.encode(prompt + text, add_special_tokens=False)
        room = window_tokens - tokenizer.frame_tokens
        if not windows:
            assert not whole.ids
            assert batch.index(text) in prepared.bad
            continue
        assert max(len(w.ids) for w in windows) <= window_tokens
        assert (len(windows) == 1) == (len(whole.ids) <= room)
        assert windows[0].start == 0
        assert windows[-1].stop == len(text)
        for before, after in pairwise(windows):
            assert before.start < after.start or "ﷺ" in text
            assert before.start <= after.start <= before.stop <= after.stop
        assert len(whole.ids) in _ends(windows, whole.ids, tokenizer, prompt, overlap)


def _ends(windows: list[Any], whole: list[int], tokenizer: Any, prompt: str, overlap: int) -> set[int]:
    """Where in the ids of the text the last window can end, each having followed on the one before with its overlap."""
    before, after = tokenizer._before, tokenizer._after
    prompt_ids = tokenizer._backend.encode(prompt, add_special_tokens=False).ids if prompt else []
    places: set[tuple[int, int]] = set()
    for n, window in enumerate(windows):
        ids = window.ids.tolist()
        assert ids[: len(before)] == before
        assert ids[len(ids) - len(after) :] == after
        body = ids[len(before) : len(ids) - len(after)]
        if n == 0:
            assert body == whole[: len(body)]
            places = {(0, len(body))}
            continue
        assert body[: len(prompt_ids)] == prompt_ids
        body = body[len(prompt_ids) :]
        assert len(body) == window.tokens
        places = {
            (at, at + len(body))
            for start, end in places
            for at in range(start + 1, end - overlap + 1)
            if at + len(body) > end and whole[at : at + len(body)] == body
        }
    return {end for _, end in places}


@quick
@given(
    joints=st.lists(st.booleans(), min_size=1, max_size=120),
    room=st.integers(2, 12),
    overlap=st.integers(0, 11),
    more=st.integers(0, 3),
)
def test_cuts(joints: list[bool], room: int, overlap: int, more: int) -> None:
    overlap = min(overlap, room - 1)
    windows = cut(np.array(joints), room, overlap, room + more).tolist()
    assert windows[0][0] == 0
    assert windows[-1][1] == len(joints)
    assert windows[0][1] <= room + more
    for (a, b), (c, d) in pairwise(windows):
        assert a < c <= b < d
        assert d - c <= room
        assert b - c >= overlap
        if all(joints):
            assert b - c == overlap
            assert b - a == room + more * (a == 0)


@quick
@given(length=st.integers(1, 300))
def test_cuts_fall_between_characters_of_a_few_tokens(length: int) -> None:
    """As with emoji in byte-level BPE: four tokens a character, and room for several of them."""
    joints = np.arange(length) % 4 == 0
    for start, stop in cut(joints, 19, 5, 19).tolist():
        assert start % 4 == 0
        assert stop % 4 == 0 or stop == length


def test_no_emoji_is_cut_by_byte_level_bpe(folders: dict[str, Path]) -> None:
    text = "🙂👍🏽" * 60
    (windows,) = by_text(task_of(folders["bpe"], 21, 5).prepare([text]), 1)
    backend = task_of(folders["bpe"], 21, 5).encoder.tokenizer._backend
    assert len(windows) > 10
    for window in windows:
        assert backend.decode(window.ids.tolist()) == text[window.start : window.stop]


@pytest.mark.parametrize(("length", "overlap"), [(256, 32), (40, 0), (64, 20)])
def test_windows_are_those_that_transformers_cuts(length: int, overlap: int) -> None:
    made = transformers.AutoTokenizer.from_pretrained(MINILM)
    text = Path(__file__).read_text() * 2 + "naïve 漢字 🙂 " * 50
    due = made(
        text, truncation=True, max_length=length, stride=overlap, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    (windows,) = by_text(task_of(MINILM, length, overlap).prepare([text]), 1)
    assert [w.ids.tolist() for w in windows] == due["input_ids"]
    offsets = due["offset_mapping"]
    assert [w.start for w in windows[1:]] == [o[1][0] for o in offsets[1:]]
    for window, theirs in zip(windows[:-1], offsets[:-1], strict=True):
        assert window.stop >= theirs[-2][1]
        assert not text[theirs[-2][1] : window.stop].strip()


def test_the_text_of_a_window_gives_its_ids_again() -> None:
    """Where a window begins and ends with whole words, its span is all that it takes to make it."""
    task = task_of(MINILM, 32, 8)
    text = "plain words that are tokens of their own and nothing else to speak of here " * 40
    (windows,) = by_text(task.prepare([text]), 1)
    plain = EmbedTask(model=str(MINILM))
    for window in windows:
        assert plain.prepare([text[window.start : window.stop]]).inputs[0].tolist() == window.ids.tolist()


def test_a_million_characters_among_short_texts(folder: Path) -> None:
    """A huge text, one without a blank, and one of ideographs; the short ones are as they are alone."""
    huge = ["many words of a text " * 48_000, "x" * 1_000_000, "漢字" * 250_000]
    batch: list[str | None] = ["short", huge[0], None, "also short", *huge[1:], ""]
    task = task_of(folder, 64, 8)
    found = by_text(task.prepare(batch), len(batch))
    for text, windows in zip(batch, found, strict=True):
        if text:
            assert (windows[0].start, windows[-1].stop) == (0, len(text))
    assert len(found[1]) > 1000
    (alone,) = by_text(task.prepare(["also short"]), 1)
    assert found[3][0].ids.tolist() == alone[0].ids.tolist()


def test_texts_that_cannot_be_done_have_no_windows(folder: Path) -> None:
    prepared = task_of(folder, 20, 2).prepare(["fine", "a \ud800 b", None, "word " * 100])
    assert prepared.bad == {1: "the text is not valid Unicode"}
    assert set(prepared.owners.tolist()) == {0, 3}  # type: ignore[union-attr]
    assert len(task_of(folder, 20, 2).prepare([None, None]).inputs) == 0
    assert len(task_of(folder, 20, 2).prepare([]).inputs) == 0


def test_a_text_that_fits_is_given_to_the_model_as_without_windows(folder: Path) -> None:
    batch = ["One short line.", "", "naïve 漢字 🙂", " \n "]
    for prompt in ("", PROMPT):
        extra = {"prompt": prompt} if prompt else {}
        plain = EmbedTask(model=str(folder), **extra).prepare(batch)
        prepared = task_of(folder, 90, 8, prompt).prepare(batch)
        assert prepared.bad == plain.bad
        for i, windows in enumerate(by_text(prepared, len(batch))):
            if i not in plain.bad:
                assert [w.ids.tolist() for w in windows] == [plain.inputs[i].tolist()]


def test_a_token_that_the_model_does_not_know_sets_its_whole_item_aside(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    backend.add_tokens(["<strange>"])
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    folder = write_model(tmp_path / "tiny", bert(), [pooling("mean")], tokenizer=fast(backend, **names))
    task = EmbedTask(model=str(folder), window_tokens=12)
    prepared = task.prepare(["word " * 50, "word " * 50 + "<strange>" + " word" * 50, "fine"])
    assert list(prepared.bad) == [1]
    assert "'<strange>' is not in the model's vocabulary" in prepared.bad[1]
    assert set(prepared.owners.tolist()) == {0, 2}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"window_tokens": 300}, "window_tokens is 300; the model's maximum is 256"),
        ({"window_tokens": 64, "overlap": 64}, "An overlap of 64 tokens leaves no new tokens in a window of 64"),
        ({"window_tokens": 64, "overlap": 62}, "room for 62 of the text besides 2 for special tokens"),
        ({"window_tokens": 4, "prompt": "a long prompt that leaves no room"}, "room for 0 of the text"),
        ({"overlap": 8}, "overlap is given without window_tokens"),
        ({"windows": "mean"}, "windows is given without window_tokens"),
        ({"window_tokens": 64, "windows": "max"}, "windows: input should be 'each' or 'mean'"),
    ],
)
def test_windows_that_cannot_be(params: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        EmbedTask(model=str(MINILM), **params).fingerprint()


@pytest.mark.parametrize("overlap", [0, 3])
def test_windows_of_a_document_end_at_its_pages_and_headings(overlap: int) -> None:
    section = "tea is a drink made of leaves . "
    text = f"# One\n\n{section * 4}\n\n## Two\n\n{section * 3}\f{section * 2}\f{section * 9}"
    task = EmbedTask(model=str(MINILM), window_tokens=48, overlap=overlap, borders=True)
    found = [(w.start, w.stop) for w in task.prepare([text]).inputs]
    begins = [start for start, _ in found]
    assert text.index("## Two") in begins
    assert text.rindex("\f") + 1 in begins
    assert begins[0] == 0
    assert found[-1][1] == len(text)
    assert all(a < b <= end for (a, end), (b, _) in pairwise(found))
    plain = EmbedTask(model=str(MINILM), window_tokens=48, overlap=overlap).prepare([text]).inputs
    assert [(w.start, w.stop) for w in plain] != found


def test_a_window_tells_the_page_of_its_middle() -> None:
    pages = ["", "tea " * 60, "", "milk " * 30]
    texts = ["\f".join(pages), None, "no pages", "\fsecond"]
    fields = pa.record_batch({"page": pa.array([2, None, None, 2], pa.int64())})
    task = EmbedTask(model=str(MINILM), window_tokens=24, overlap=4, page=True)
    prepared = task.prepare(texts, fields)
    for window, owner in zip(prepared.inputs, prepared.owners.tolist(), strict=True):  # type: ignore[union-attr]
        text = texts[owner] or ""
        word = len(text) - len(text[(window.start + window.stop) // 2 :].lstrip())
        assert window.page == (0 if owner == 2 else 1 + text[:word].count("\f"))
    assert {w.page for w in prepared.inputs} == {0, 2, 4}
    assert task.output.names == ["window", "start", "stop", "page", "embedding"]
    assert task.fields == ("page",)
    assert {w.page for w in task.prepare(texts).inputs} == {0}
    mean = EmbedTask(model=str(MINILM), window_tokens=24, windows="mean", page=True)
    assert (mean.page_param, mean.fields, mean.output.names) == ("", (), ["embedding"])
