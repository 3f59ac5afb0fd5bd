"""Texts that tokenizers treat in special ways: a list, and strategies that mix such parts."""

from __future__ import annotations

from hypothesis import strategies as st

SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\n\n\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0"]
SPACES += ["\u1680", "\u2002", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", " \n \t "]
NOTHINGS = ["\x00", "\x01", "\x7f", "\x80", "\x9f", "\xad", "\u200b", "\u200c", "\u200d", "\u200e", "\u2060", "\ufeff"]
NOTHINGS += ["\ufffd", "\ufffe", "\uffff", "\u180e", "\u061c", "\ufe0f", "\U000e0041", "\ue000", "\U0010ffff"]
MARKS = ["\u0301", "\u0300", "\u0308", "\u0327", "\u0345", "\u20dd", "\u093c", "\u0e49", "\u3099", "\u05bf", "\u064b"]
SPECIALS = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "[unused0]", "[sep]", "[ SEP ]", "[SE", "P]", "##ing", "##"]
SPECIALS += ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>", "<|endoftext|", "▁", "▁the", "Ġthe", "Ċ", "ĠĠ"]
WORDS = ["the", "The", "THE", "running", "unaffable", "embeddings", "don't", "it's", "I'LL", "naïve", "Café", "zzxqj"]
WORDS += ["e-mail", "3.14", "1,000", "a", "I", ".", ",", "...", "—", "$5", "^", "`", "~|", "x_y", "http://a.b/c?d=e&f"]
WORDS += ["漢", "漢字", "かな", "カナ", "한국어", "각", "𠀀", "豈", "丽", "豆腐x", "ß", "ẞ", "İ", "ı", "Σ", "ς"]
WORDS += [
    "ǅ",
    "ﬁ",
    "ﬃ",
    "Ⅷ",
    "²",
    "½",
    "①",
    "Å",
    "Ω",
    "ﷺ",
    "Ａ",
    "ｶﾞ",
    "мир",
    "Ёж",
    "ё",
    "й",
    "שלום",
    "مرحبا",
    "हिन्दी",
    "ไทย",
]
WORDS += ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "é", "e\u0301", "a\u0323\u0302", "q\u0308\u0301", "\u0301", "o\u0308ß"]

characters = st.characters(exclude_categories=["Cs"])
long_words = st.builds(
    lambda unit, times, tail: unit * times + tail,
    st.sampled_from(["a", "e\u0301", "é", "1", "xy", "ß", "İ", "-", ".", "漢", "🙂", "\u0301", "\x00a", "a\u200b"]),
    st.sampled_from([49, 50, 51, 99, 100, 101, 102, 200]),
    st.sampled_from(["", "a", "s", "ing", "\u0301", " "]),
)
pieces = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS),
    st.sampled_from(SPACES),
    st.sampled_from(SPACES + NOTHINGS + MARKS),
    st.sampled_from(SPECIALS),
    st.text(characters, max_size=6),
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12),
    long_words,
)
short = st.builds(lambda parts, joint: joint.join(parts), st.lists(pieces, max_size=24), st.sampled_from(["", " "]))
# Around where a text is held to be huge, and only its head is read.
huge = st.builds(
    lambda parts, joint, start, size: (start + (joint.join(parts) + joint) * (1 + size // (1 + len("".join(parts)))))[
        : size + 3
    ],
    st.lists(pieces, min_size=1, max_size=8),
    st.sampled_from(["", " ", " ", "\n", "\u3000"]),
    st.sampled_from(["", "", "x" * 300, " " * 4000, "\u200b" * 4090]),
    st.sampled_from([4090, 4094, 4096, 4097, 5000, 9000, 17000]),
)
texts = st.lists(st.one_of(short, short, short, st.none(), st.text(characters)), min_size=1, max_size=5)

NASTY = [
    "",
    " ",
    "\n\n\n\n",
    " \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u3000",
    "\x00",
    "\x00\x01\x02 \x7f\x80\x9f",
    "\u200b\u00a0\ufeff",
    "a\u00a0b\u200bc\u0085d\x1ce\u2028f\u3000g\u00adh",
    "a\x00b a\ufffdb a\x1fb",
    "[CLS] a [SEP] b [MASK] [PAD] [UNK]",
    "[CLS][SEP][MASK][PAD][UNK]",
    "x[SEP]y[mask]z [ MASK ] [MASK [[MASK]] [MASK]ing",
    "<s> a </s><pad>b<unk> <mask>c < mask > <|endoftext|>d<|endoftext|",
    "##ing ## ##a running##ing",
    "▁the ▁ Ġthe Ċ Â â\x96\x81",
    "a" * 99 + " " + "a" * 100 + " " + "a" * 101 + " " + "a" * 200,
    "é" * 100 + " " + "é" * 101 + " " + "e\u0301" * 50 + " " + "e\u0301" * 51 + " " + "e\u0301" * 101,
    "a" * 100 + "\u0301",
    "a" * 100 + "\u200b",
    "a" * 100 + "-" + "a" * 101 + "." + "漢" * 101,
    "\u0301\u0301\u0301 \u0301a a\u0301",
    "q\u0323\u0307 q\u0307\u0323 \u1e9b\u0323 ǆ Ǆ ﬁ ½ ﷺ",
    "İstanbul ısı SS ß ẞ ΣΑΣ ὈΔΥΣΣΕΎΣ Å Å Å",
    "각 가 \u1100\u1161\u11a8 \u1100\u1161",
    "漢字kanji漢a字b 𠀀𪜀 豈 丽 々〆〇 ㄅㄆ ｶﾞ カ\u3099",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇫🇷🇫 1️⃣ ☺︎ ☺️",
    "हिन्दी বাংলা தமிழ் ไทยก็ ລາວ မြန်မာ ខ្មែរ བོད་",
    "שָׁלוֹם مَرْحَبًا \u202eabc\u202c \u2066x\u2069",
    "don't DON'T I'll they're 'tis 'S 's  's",
    "1,234.56 3.14e-10 0x1F 1/2 50% $5 €5 #1 @a",
    "~`!@#$%^&*()_+-={}|[]\\:\";'<>?,./",
    "…—–‘’“”«»‹›„‚·•†‡‰′″‼⁇⁄₠€™℠®©",
    "a_b __init__ a__b _ __",
    "http://user:pw@ex-ample.com:80/a/b?c=d&e=f#g me@x.org",
    "\ue000\uf8ff\U000f0000\U0010fffd\ufdd0\ufffe\uffff\U0001fffe",
    "\u0378\u0380\u05ff\U0001f9ff\U000e0100",
    "a  b   c    d\n\n\ne\n \n f\t\tg  ",
    "  leading and trailing  ",
    "word " * 300,
    "a " * 253 + "b c d e",
    "unaffable" * 20,
    "漢" * 253 + "字字字",
    "word " * 4000,
    "x" * 5000,
    " " * 5000 + "x",
    "\u0301" * 5000 + "x",
    ("[SEP]" * 900) + "x",
    "y" * 4090 + " [MASK] tail " * 300,
    ("a" * 101 + " ") * 300,
    "\n" * 4095 + "end of it all " * 100,
]
