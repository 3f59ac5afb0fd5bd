"""The image is built in no test; what can be wrong with its recipe is checked here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from shardmill.engines.kubernetes.pod import COMMAND

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Containerfile").read_text())
STEPS = [line.partition(" ")[::2] for line in TEXT.splitlines() if line and not line.startswith("#")]


def _of(word: str) -> list[str]:
    return [rest for step, rest in STEPS if step == word]


def test_two_stages_of_a_base_that_a_release_pins() -> None:
    assert [each.partition(" ")[0] for each in _of("FROM")] == ["${BASE}"] * 2
    (base,) = [each.partition("=")[2] for each in _of("ARG") if each.startswith("BASE=")]
    assert ":" in base
    assert not base.endswith(":latest")


def test_the_last_stage_has_a_user_and_the_command_of_the_pods() -> None:
    last = STEPS[max(i for i, (step, _) in enumerate(STEPS) if step == "FROM") :]
    named = dict(last)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", named["USER"]), "a number: Kubernetes checks runAsNonRoot by it"
    assert json.loads(named["ENTRYPOINT"]) == [COMMAND]
    assert COMMAND in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "RUN" not in [step for step, _ in last], "nothing is built in it"


def test_what_is_copied_exists_and_nothing_is_fetched_by_hand() -> None:
    for copied in _of("COPY"):
        words = [word for word in copied.split() if not word.startswith("--")]
        if "--from" not in copied:
            assert all((ROOT / word).exists() for word in words[:-1]), copied
    assert not _of("ADD")
    assert not re.search(r"\b(curl|wget|git clone)\b", TEXT)
    assert not re.search(r"(?i)(password|secret|token)", TEXT)


def test_its_extras_exist() -> None:
    (extras,) = [each.partition("=")[2] for each in _of("ARG") if each.startswith("EXTRAS=")]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= known.keys()
