"""NLLB, M2M100 and mBART-50: the languages that are asked for are those of transformers' own `generate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError, SpecError  # noqa: E402
from shardmill.models.decoding.generative import read_generative  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.languages import read_languages  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import Run, start  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from tests.support.translators import CODES, SENTENCES, translate_one_by_one, write_translator  # noqa: E402

CPU, MOST = Device("cpu", "a CPU"), 10


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """M2M100 needs sentencepiece, the others do not."""
    root = tmp_path_factory.mktemp("translators")
    kinds = [kind for kind in CODES if kind != "m2m100" or _has_sentencepiece()]
    return {kind: write_translator(root / kind, kind) for kind in kinds}


def _has_sentencepiece() -> bool:
    try:
        import sentencepiece  # noqa: F401
    except ImportError:
        return False
    return True


def answers(folder: Path, **options: Any) -> list[list[int]]:
    generator = Generator.open(folder, CPU, GenerationOptions(max_new_tokens=MOST, **options))
    encoded = generator.encode(SENTENCES)
    assert not encoded.bad
    made = dict(one for group in generator.stream(iter(enumerate(encoded.prompts))) for one in group)  # type: ignore[arg-type]
    first = generator._codec.first
    assert first is not None
    assert generator.decode([first, 42]) == generator.decode([42])
    return [made[i].ids.tolist() for i in range(len(SENTENCES))]  # type: ignore[union-attr]


@pytest.mark.parametrize(("kind", "beams"), [("nllb", 1), ("nllb", 2), ("m2m100", 1), ("mbart50", 1)])
def test_answers_in_a_language_are_those_of_generate(folders: dict[str, Path], kind: str, beams: int) -> None:
    needed("sentencepiece" if kind == "m2m100" else "tokenizers")
    source, *targets = CODES[kind]
    found = []
    for target in targets[: 2 if kind == "mbart50" else 1]:
        asked = {"source_language": source, "target_language": target, "beams": beams}
        expected = translate_one_by_one(folders[kind], SENTENCES, MOST, source, target, num_beams=beams)
        found.append(answers(folders[kind], **asked))
        assert found[-1] == expected
    assert len({str(each) for each in found}) == len(found)


def test_files_name_the_languages(folders: dict[str, Path]) -> None:
    for kind, count, source in (("nllb", 202, "eng_Latn"), ("mbart50", 52, "en_XX")):
        found = read_languages(read_generative(folders[kind]))
        assert found is not None
        assert (len(found.tokens), found.source, found.target, found.has_target) == (count, source, "", False)


def run_of(folder: Path, out: Path, **params: Any) -> Run:
    out.mkdir(exist_ok=True)
    if not (out / "items.jsonl").exists():
        (out / "items.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in SENTENCES))
    params = {"model": str(folder), "max_tokens": MOST, **params}
    work = {"source": str(out / "items.jsonl"), "text": "body", "task": "generate", "params": params}
    return start(make_spec(work, {"device": "cpu", "precision": "float32"}), out / "run", engine=InProcessEngine())


def test_a_run_names_its_language_or_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["mbart50"]
    with pytest.raises(ModelError, match="translates into many languages, and none was named") as told:
        run_of(folder, tmp_path)
    assert "--target-language" in told.value.hint
    with pytest.raises(ModelError, match="--target-language: model knows no language 'fr'") as told:
        run_of(folder, tmp_path, target_language="fr")
    assert "fr_XX" in told.value.hint
    with pytest.raises(ModelError, match="--source-language: model knows no language 'klingon'"):
        run_of(folder, tmp_path, source_language="klingon", target_language="fr_XX")
    with pytest.raises(SpecError, match="not part of the protocol"):
        run_of(folder, tmp_path, target_language="fr_XX", endpoint="http://127.0.0.1:1/v1")
    assert not (tmp_path / "run").exists()


def test_the_models_own_language_is_settled_by_the_plan(folders: dict[str, Path], tmp_path: Path) -> None:
    own = shutil.copytree(folders["mbart50"], tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(own))
    said = json.loads((own / "generation_config.json").read_text())
    said |= {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("ru_RU")}
    (own / "generation_config.json").write_text(json.dumps(said))
    run = run_of(own, tmp_path / "one")
    assert run.plan.work.params["target_language"] == "ru_RU"
    assert run_of(own, tmp_path / "one").plan == run.plan
    ids = [row["tokens_out"] for row in run.table().to_pylist()]
    assert ids == [len(row) for row in translate_one_by_one(own, SENTENCES, MOST, "en_XX", "")]


def test_a_run_that_began_without_a_language_goes_on_as_it_began(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["mbart50"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.models.replies.read_languages", lambda folder: None)
        begun = run_of(folder, tmp_path)
    assert "target_language" not in begun.plan.work.params
    assert run_of(folder, tmp_path).plan == begun.plan


def test_other_models_are_told_no_language(tmp_path: Path) -> None:
    from tests.support.generative_models import write_generative

    folder = write_generative(tmp_path / "bart", "Bart")
    assert read_languages(read_generative(folder)) is None
    with pytest.raises(ModelError, match="is not told a language: --target-language is for NLLB"):
        run_of(folder, tmp_path / "items", target_language="fr_XX")
    assert "target_language" not in run_of(folder, tmp_path / "items").plan.work.params
