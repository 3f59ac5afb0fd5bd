"""Tokenizing with each kind of tokenizer: processor time per 1,000 tokens, by the tokenizers library and by shardmill.

python -m benchmarks.tokenizing --texts reviews.jsonl --field reviewText --minilm FOLDER

The tokenizers are trained on the texts, with the normalizers and splitters of the real families. Both ways read the
same texts in blocks, cut at the same length, in turn; the median counts. "first" is the first time through the texts,
"new" the last quarter of that, when the words of three quarters are known, and "again" the second time.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers as splits

from benchmarks.machine import describe_machine, print_table
from shardmill.models.tokenizer import Tokenizer

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BLOCK = 512
Read = Callable[[list[str]], int]


def _bytes(texts: list[str], words: int, pattern: str | None, normalizer: Any = None, **model: Any) -> Backend:
    """Byte-level BPE, split by GPT-2's pattern or by another."""
    made = Backend(models.BPE(**model))
    made.normalizer = normalizer
    made.pre_tokenizer = splits.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        last = splits.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = splits.Sequence([splits.Split(Regex(pattern), "isolated"), last])
    trainer = trainers.BpeTrainer(
        vocab_size=words, special_tokens=["<eos>"], initial_alphabet=splits.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made


def _modernbert(texts: list[str], words: int) -> Backend:
    made = _bytes(texts, words, None, normalizers.NFC())
    made.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return made


def _merged(texts: list[str], words: int, llama: bool) -> Backend:
    """BPE over a whole text with marks for spaces, as Gemma and Llama 2 have it."""
    made = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = splits.Metaspace(prepend_scheme="never")
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=words, special_tokens=specials, show_progress=False)
    made.train_from_iterator(texts, trainer)
    described = json.loads(made.to_str())
    # Only what stands for the unknown is looked for in texts.
    described["added_tokens"] = described["added_tokens"][:1]
    made = Backend.from_str(json.dumps(described))
    if llama:
        made.pre_tokenizer = splits.Metaspace(prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = splits.Split(" ", "merged_with_previous")
    return made


def _unigram(texts: list[str], words: int, by_blanks: bool) -> Backend:
    """Unigram as XLM-R and T5 have it, and as UMT5 does."""
    made = Backend(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    marked = splits.Metaspace()
    made.pre_tokenizer = splits.Sequence([splits.WhitespaceSplit(), marked]) if by_blanks else marked
    trainer = trainers.UnigramTrainer(
        vocab_size=words, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made


def _backends(asked: argparse.Namespace, texts: list[str]) -> Iterator[tuple[str, Backend]]:
    words = asked.words
    makers: dict[str, Callable[[], Backend]] = {
        "MiniLM: WordPiece": lambda: Backend.from_file(str(Path(asked.minilm) / "tokenizer.json")),
        "RoBERTa, GPT-2: BPE of bytes": lambda: _bytes(texts, words, None),
        "ModernBERT: BPE of bytes": lambda: _modernbert(texts, words),
        "Qwen: BPE of bytes": lambda: _bytes(texts, words, _WORDS + r"\p{N}" + _REST, normalizers.NFC()),
        "Llama 3: BPE of bytes": lambda: _bytes(texts, words, _WORDS + r"\p{N}{1,3}" + _REST, ignore_merges=True),
        "Gemma: BPE of a whole text": lambda: _merged(texts, words, llama=False),
        "Llama 2: BPE of a whole text": lambda: _merged(texts, words, llama=True),
        "XLM-R, T5: Unigram": lambda: _unigram(texts, min(words, 32_000), by_blanks=True),
        "UMT5: Unigram": lambda: _unigram(texts, min(words, 32_000), by_blanks=False),
    }
    for name, make in makers.items():
        if (asked.minilm or "MiniLM" not in name) and (not asked.only or asked.only in name):
            kept = Path(asked.keep) / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json" if asked.keep else None
            made = Backend.from_file(str(kept)) if kept is not None and kept.exists() else make()
            if kept is not None and not kept.exists():
                made.save(str(kept))
            made.no_truncation()
            made.no_padding()
            yield name, made


def _by_library(backend: Backend, limit: int) -> Read:
    own = Backend.from_str(backend.to_str())
    own.enable_truncation(limit)

    def read(texts: list[str]) -> int:
        encodings = own.encode_batch_fast(texts, add_special_tokens=True)
        return len(np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings]))

    return read


def _by_shardmill(backend: Backend, limit: int) -> Read:
    made = Tokenizer(backend, limit=limit, pad_id=0, special_ids=set(), from_left=False)
    return lambda texts: len(made.encode(texts).rows.flat)


def _measure(read: Read, blocks: list[list[str]]) -> tuple[float, float, int]:
    """Milliseconds of processor time per 1,000 tokens, over all blocks and over the last quarter; the tokens."""
    taken, counts = [], []
    for block in blocks:
        began = time.process_time()
        counts.append(read(block))
        taken.append(time.process_time() - began)
    last = len(blocks) * 3 // 4
    return 1e6 * sum(taken) / sum(counts), 1e6 * sum(taken[last:]) / sum(counts[last:]), sum(counts)


def _row(name: str, backend: Backend, blocks: list[list[str]], repeats: int, limit: int) -> list[str]:
    found = []
    for _ in range(repeats):
        library, _, due = _measure(_by_library(backend, limit), blocks)
        own = _by_shardmill(backend, limit)
        (first, new, tokens), (again, _, more) = _measure(own, blocks), _measure(own, blocks)
        if not due == tokens == more:
            raise SystemExit(f"{name}: the two ways give {due}, {tokens} and {more} tokens")
        found.append((library, first, new, again))
    library, *ours = (statistics.median(column) for column in zip(*found, strict=True))
    return [name, f"{due:,}", f"{library:.2f}", *(f"{own:.2f} ({library / own:.1f}x)" for own in ours)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="a JSONL file")
    parser.add_argument("--field", default="text")
    parser.add_argument("--minilm", default="", help="a folder with MiniLM's tokenizer.json")
    parser.add_argument("--words", type=int, default=45_000, help="the size of the vocabularies")
    parser.add_argument("--keep", default="", help="a folder where trained tokenizers are kept")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    describe_machine()
    lines = Path(asked.texts).read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)[asked.field] for line in lines[: asked.count]]
    blocks = [texts[i : i + _BLOCK] for i in range(0, len(texts), _BLOCK)]
    _by_shardmill(Backend(models.WordLevel({"a": 0, "hello": 1}, unk_token="a")), 256)(["a"])
    head = ["tokenizer", "tokens", "library", "first", "new", "again"]
    print_table(head, [_row(name, each, blocks, asked.repeats, asked.limit) for name, each in _backends(asked, texts)])


if __name__ == "__main__":
    main()
