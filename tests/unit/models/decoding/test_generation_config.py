"""What a model says of its own decoding is followed, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError  # noqa: E402
from shardmill.models.decoding import generation_config, settings  # noqa: E402
from shardmill.models.decoding.generation_config import read_generation  # noqa: E402
from shardmill.models.decoding.generative import read_generative  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.models.replies import LocalModel  # noqa: E402
from shardmill.plan import NUMERICS  # noqa: E402
from tests.support.generative_models import PAD, generate_one_by_one, write_generative  # noqa: E402
from tests.unit.models.decoding.test_generator import TEXTS, answers  # noqa: E402

CPU = Device("cpu", "a CPU")
# Followed over pages, by beams, or as limits of an answer.
FOLLOWED = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams", "early_stopping", "length_penalty"),
    *("stop_strings", "repetition_penalty", "no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens", "renormalize_logits", "decoder_start_token_id"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)


def _says(folder: Path, **said: Any) -> None:
    at = folder / "generation_config.json"
    at.write_text(json.dumps(json.loads(at.read_text()) | said))


def test_every_setting_of_transformers_is_named() -> None:
    known = {*FOLLOWED, *settings.OTHERS, *generation_config.REFUSED, *generation_config.SAMPLING}
    known |= {*generation_config.UNSET, *generation_config.WITHOUT_EFFECT}
    there = {*transformers.GenerationConfig().to_dict(), "_from_model_config"}
    assert there - known == set()


@pytest.mark.parametrize("name", ["llama", "gemma2", "bart"])
@pytest.mark.parametrize("many", [1, 2])
def test_the_models_own_stop_strings_end_an_answer(tmp_path: Path, name: str, many: int) -> None:
    kind = {"llama": "Llama", "gemma2": "Gemma2", "bart": "Bart"}[name]
    folder = write_generative(tmp_path / name, kind, generation={"repetition_penalty": 1.5})
    plain = answers(Generator.open(folder, CPU, GenerationOptions(max_new_tokens=20)), TEXTS)
    # Bytes that are no character are written as one, which no stop string is compared with.
    # transformers also finds one that the prompt begins.
    pairs = {pair for one in plain.values() for pair in re.findall("[!-~]{2}", one.text[3:])}
    stops = sorted(pair for pair in pairs if not any(text.endswith(pair[0]) for text in TEXTS))[:many]
    _says(folder, stop_strings=stops if many > 1 else stops[0])
    made = answers(Generator.open(folder, CPU, GenerationOptions(max_new_tokens=20)), TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    due = generate_one_by_one(folder, TEXTS, 20, stop_strings=stops, tokenizer=tokenizer)
    assert [made[i].ids.tolist() for i in range(len(TEXTS))] == due
    assert due != [plain[i].ids.tolist() for i in range(len(TEXTS))]
    for i, one in made.items():
        ends = [plain[i].text.index(stop) for stop in stops if stop in plain[i].text]
        assert one.text == plain[i].text[: min(ends, default=None)]
        assert one.reason == ("stop" if ends else plain[i].reason)


def test_a_stop_string_may_be_a_special_token(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "llama", special=("<|over|>",))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    over = tokenizer.convert_tokens_to_ids("<|over|>")
    # Its third token is the special one, whatever the text.
    _says(folder, suppress_tokens=[i for i in range(len(tokenizer)) if i not in (40, over)], repetition_penalty=1.5)
    _says(folder, begin_suppress_tokens=[over], stop_strings=["<|over|>"])
    made = answers(Generator.open(folder, CPU, GenerationOptions(max_new_tokens=12)), TEXTS)
    due = generate_one_by_one(folder, TEXTS, 12, stop_strings=["<|over|>"], tokenizer=tokenizer)
    assert [made[i].ids.tolist() for i in range(len(TEXTS))] == due
    assert any(ids[-1] == over and len(ids) < 12 for ids in due)
    assert all("over" not in one.text for one in made.values())
    assert {made[i].reason for i, ids in enumerate(due) if ids[-1] == over} == {"stop"}


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({"dola_layers": "high"}, {}),
        ({"dola_layers": [0, 1]}, {}),
        ({"penalty_alpha": 0.6, "top_k": 4}, {}),
        ({"force_words_ids": [[[5]]]}, {}),
        ({"constraints": ["x"]}, {"beams": 2}),
        ({"token_healing": True}, {"temperature": 0.5}),
        ({"num_beam_groups": 2}, {"beams": 2}),
        ({"diversity_penalty": 0.5}, {"beams": 2}),
    ],
)
def test_a_way_to_decode_that_is_not_implemented_is_named(
    tmp_path: Path, said: dict[str, Any], options: dict[str, Any]
) -> None:
    folder = write_generative(tmp_path / "llama")
    _says(folder, **said)
    asked = GenerationOptions(max_new_tokens=4, **options)
    for refused in (lambda: LocalModel(str(folder), asked).fingerprint(), lambda: Generator.open(folder, CPU, asked)):
        with pytest.raises(ModelError, match=f"llama sets {next(iter(said))} to") as caught:
            refused()
        assert "remove" in caught.value.hint


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({"dola_layers": "high"}, {"beams": 2}),
        ({"dola_layers": "high"}, {"temperature": 0.5}),
        ({"penalty_alpha": 0.6}, {}),
        ({"penalty_alpha": 0.6, "top_k": 4}, {"temperature": 0.5}),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, {}),
        ({"max_time": 0.0, "prompt_lookup_num_tokens": 3, "bad_words_ids": [[5]]}, {}),
    ],
)
def test_what_does_not_count_is_not_refused(tmp_path: Path, said: dict[str, Any], options: dict[str, Any]) -> None:
    folder = write_generative(tmp_path / "llama")
    _says(folder, **said)
    asked = GenerationOptions(max_new_tokens=4, **options)
    LocalModel(str(folder), asked).fingerprint()
    made = answers(Generator.open(folder, CPU, asked), TEXTS)
    assert all(len(one.ids) == 4 or one.reason == "stop" for one in made.values())


def test_settings_are_where_transformers_finds_them(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "bart", "Bart", generation={"num_beams": 3})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_beams": 4, "max_length": 30}))
    for beams, most in ((3, None), (4, 30)):
        said, model = read_generation(folder), transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder))
        assert (said["num_beams"], said.get("max_length")) == (beams, most)
        assert (model.generation_config.num_beams, model.generation_config.max_length) == (beams, most)
        (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "said", "options", "due"),
    [
        ("Bart", {"num_beams": 4, "max_length": 142}, {}, {"beams": 4, "max_tokens": 141}),
        ("Bart", {"num_beams": 4, "max_length": 142, "max_new_tokens": 9}, {}, {"beams": 4, "max_tokens": 9}),
        ("Bart", {"num_beams": 4, "max_length": 2048}, {}, {"beams": 4, "max_tokens": 511}),
        ("Bart", {"num_beams": 4, "max_length": 142}, {"schema": "{}"}, {}),
        ("Bart", {"num_beams": 1}, {}, {}),
        ("Bart", {"num_beams": 4}, {"temperature": 1.0}, {}),
        ("Bart", {"num_beams": 4}, {"schema": "{}"}, {}),
        ("Llama", {"num_beams": 2, "max_length": 142, "max_new_tokens": 9}, {}, {"beams": 2}),
    ],
)
def test_beams_and_limit_are_the_models_own(
    tmp_path: Path, kind: str, said: dict[str, Any], options: dict[str, Any], due: dict[str, Any]
) -> None:
    folder = write_generative(tmp_path / "model", kind, generation=said)
    assert LocalModel(str(folder), GenerationOptions(**options)).follow_model() == due
    assert read_generative(folder).generation["num_beams"] == said["num_beams"]


def test_a_run_that_ignored_stop_strings_is_not_finished_otherwise(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "llama")
    assert NUMERICS not in LocalModel(str(folder), GenerationOptions()).fingerprint()
    _says(folder, stop_strings=[PAD])
    assert LocalModel(str(folder), GenerationOptions()).fingerprint()[NUMERICS] == "answers 2"
