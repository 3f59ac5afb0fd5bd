"""What counts as the same text: words of every script, with the marks that tell them apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardmill.ledger import Ledger
from shardmill.verbs.dedup.functions import normalize, shingles
from tests.support.languages import TEXTS
from tests.support.libraries import needed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("पिता", "पोता"),  # father, grandson: they differ in vowel signs alone
        ("มา", "มี"),
        ("கல்", "கால்"),
    ],
)
def test_words_that_differ_in_their_signs_are_other_words(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)
    assert normalize(one).split() == [one]


def test_marks_and_case_do_not_count() -> None:
    assert normalize("Grüße,  WÖRLD! ❤\ufe0f") == normalize("gru\u0308ße wörld")
    assert normalize("❤\ufe0f!!") == ""


PAGES = [f"{a} {b} {c}" for a in TEXTS["de"] for b in TEXTS["de"][:5] for c in ("Seite eins.", "Ende.") if a != b][:20]


def tagged(text: str, number: int) -> str:
    """A page with a tag around each of its words, and others before and after."""
    words = " ".join(f'<span class="w{i % 3}">{word}</span>' for i, word in enumerate(text.split()))
    head = f"<script>var page = {number};</script><style>p {{ color: red }}</style>"
    return f'<html><!-- page {number} -->{head}<body><div id="n{number}"><p>{words}</p></div></body></html>'


@pytest.mark.parametrize(("stripped", "found"), [(True, 20), (False, 0)])
def test_pages_with_tags_are_found_without_them(stripped: bool, found: int, tmp_path: Path) -> None:
    needed("datasketch")
    from shardmill.testing import InProcessEngine
    from shardmill.verbs.dedup.removal import remove_duplicates

    rows = [*PAGES, *(tagged(text, number) for number, text in enumerate(PAGES))]
    assert len({*rows}) == len(rows) == 40
    source = tmp_path / "pages.jsonl"
    source.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(rows)))
    work = {"source": str(source), "text": "body", "id": "id"}
    how = {"markup": not stripped, "threshold": 0.97, "engine": InProcessEngine()}
    for exact in (False, True):
        done = remove_duplicates(work, {}, tmp_path / f"{exact}", exact=exact, **how)
        assert done.dropped == found
        kept = done.run.table(["body"]).column("body").to_pylist()
        assert kept == (PAGES if stripped else rows)


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_nearly_equal_texts_without_spaces_are_alike(language: str) -> None:
    text = "".join(TEXTS[language])
    changed = "".join(each[:5] + each[6:] if i % 4 == 0 else each for i, each in enumerate(TEXTS[language]))
    before, now = ([{*shingles(normalize(each), characters=how)} for each in (text, changed)] for how in (False, True))
    assert len(before[0] & before[1]) < 0.6 * len(before[0] | before[1])
    assert len(now[0] & now[1]) > 0.9 * len(now[0] | now[1])


def test_shingles_of_other_scripts_stay_as_they_were() -> None:
    for language in ("de", "ru", "ar", "hi"):
        for text in TEXTS[language]:
            assert shingles(normalize(text)) == shingles(normalize(text), characters=True)


def test_a_run_of_an_earlier_version_keeps_its_shingles(tmp_path: Path) -> None:
    needed("datasketch")
    from shardmill.testing import InProcessEngine
    from shardmill.verbs.dedup import removal

    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(TEXTS["zh"])))
    work = {"source": str(source), "text": "body", "id": "id"}

    def arguments(place: str) -> object:
        removal.remove_duplicates(work, {}, tmp_path / place, engine=InProcessEngine())
        return Ledger(f"{tmp_path / place}-signatures").plan().work.params["arguments"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "_settle_arguments", lambda *place, **how: {})
        assert arguments("old") == {}
    assert arguments("old") == {}
    assert arguments("new") == {"characters": True}
    assert arguments("new") == {"characters": True}
