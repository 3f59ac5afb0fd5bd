"""Benchmark texts: of mixed lengths like real ones, and the same every time."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.core.console import Bar
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source

CountTokens = Callable[[list[str]], NDArray[np.int64]]

LONGEST_TOKENS = 512
_SHORTEST_TOKENS = 8
# Mean and sigma of the log-normal lengths: the mean length is about 110 tokens, the median 81.
_LOG_MEAN, _LOG_SPREAD = 4.4, 0.8
# In running text, about one word in fifty is new, even after tens of millions of words.
_WORDS_PER_NEW_ONE = 50
_SAMPLE = 1000
_SOURCE_SHARD_BYTES = 1 << 20


def mixed_texts(count: int, count_tokens: CountTokens, *, seed: int = 0) -> Iterator[str]:
    """Passages of running English with log-normal lengths, about 110 tokens on average and 512 at most.

    They are cut from the docstrings of Python's standard library. Every fiftieth word is new, made of parts of two
    others, so that a cache of words sees as many unknown ones as in a large corpus.
    """
    random = np.random.default_rng(seed)
    words = docstring_words()
    stream = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    tokens = np.concatenate([[0], np.cumsum(_word_tokens(words, count_tokens))])
    stems = sorted({word for word in words if word.isalpha() and len(word) > 4})
    sample = [_new_word(stems, *pair) for pair in random.integers(len(stems), size=(_SAMPLE, 2))]
    new_tokens = float(_word_tokens(sample, count_tokens).mean())

    lengths = np.clip(random.lognormal(_LOG_MEAN, _LOG_SPREAD, count), _SHORTEST_TOKENS, LONGEST_TOKENS)
    lengths -= frame_tokens(count_tokens)
    per_word = tokens[-1] / len(words)
    new = random.poisson(lengths / per_word / _WORDS_PER_NEW_ONE)
    wanted = np.maximum(1, lengths - new * new_tokens)
    firsts = random.integers(int(np.searchsorted(tokens, tokens[-1] - LONGEST_TOKENS)), size=count)
    ends = np.maximum(firsts + 1, np.searchsorted(tokens, tokens[firsts] + wanted, side="right") - 1)
    for first, end, more in zip(starts[firsts].tolist(), (starts[ends] - 1).tolist(), new.tolist(), strict=True):
        made = [_new_word(stems, *pair) for pair in random.integers(len(stems), size=(more, 2))] if more else ()
        yield " ".join([stream[first:end], *made])


def frame_tokens(count_tokens: CountTokens) -> int:
    """The tokens of a text besides those of its words: special tokens and the prompt."""
    one, two = count_tokens(["a", "a a"]).tolist()
    return int(2 * one - two)


@cache
def docstring_words() -> tuple[str, ...]:
    """The words of the docstrings in the standard library's top-level modules, in order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    words: list[str] = []
    for file in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words += (ast.get_docstring(node) or "").split()
    if len(words) < 10 * LONGEST_TOKENS:
        raise SourceError(
            f"{folder} has no sources of Python's standard library, whose docstrings are the benchmark texts.",
            hint="Give your own texts: --source FILE --text FIELD",
        )
    return tuple(words)


def own_texts(source: str, text: str, count: int) -> Iterator[str]:
    """The first texts of a source; rows without a text are skipped."""
    fields = Fields(text)
    reader = open_source(discover([source], fields), fields)
    batches = (batch for shard in reader.shards(_SOURCE_SHARD_BYTES) for batch in reader.read(shard))
    return islice((found for batch in batches for found in batch.texts.to_pylist() if found is not None), count)


def write_texts(path: Path, texts: Iterable[str], count: int, *, quiet: bool = True) -> int:
    """Write texts as JSONL with an id and a text per line; return their number."""
    written = 0
    with open(path, "w", encoding="utf-8") as file, Bar("writing texts", quiet=quiet) as bar:
        for written, text in enumerate(texts, 1):
            file.write(json.dumps({"id": written, "text": text}, ensure_ascii=False) + "\n")
            if written % 1000 == 0:
                bar.count(written, count, "texts")
    return written


def read_texts(path: Path, count: int) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, count)]


def _word_tokens(words: Sequence[str], count_tokens: CountTokens) -> NDArray[np.int64]:
    """Tokens of each word inside a text, after a space."""
    found, where = np.unique(np.array(words, dtype=object), return_inverse=True)
    counts = count_tokens([f" {word}" for word in found])
    return np.maximum(0, counts - frame_tokens(count_tokens))[where]


def _new_word(stems: list[str], first: int, second: int) -> str:
    return stems[first][: (len(stems[first]) + 1) // 2] + stems[second][len(stems[second]) // 2 :]
