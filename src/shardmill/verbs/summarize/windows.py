"""Cuts a text into windows at the ends of sentences, each as long as a model can take."""

from __future__ import annotations

from collections.abc import Callable

from shardmill.core.sentences import split_sentences

# How long a token of usual text is; where tokens are shorter, windows are halved until they fit.
CHARACTERS_PER_TOKEN = 4


def cut_windows(text: str, most_tokens: int, fits: Callable[[str], bool]) -> list[str]:
    """The text in windows that fit, in order; a sentence that does not fit alone is cut between words.

    >>> cut_windows("One. Two. Three.", 3, lambda window: len(window) <= 9)
    ['One. Two.', 'Three.']
    """
    windows = []
    for window in _pack(text, max(1, most_tokens * CHARACTERS_PER_TOKEN)):
        windows += _halve(window, fits)
    return windows


def _pack(text: str, characters: int) -> list[str]:
    """Sentences that follow one another, together, up to a number of characters."""
    if len(text) <= characters:
        return [text]
    windows, start, last = [], 0, 0
    for first, stop in split_sentences(text):
        if stop - start > characters and last > start:
            windows.append(text[start:last])
            start = first
        last = stop
    return [*windows, text[start:]]


def _halve(window: str, fits: Callable[[str], bool]) -> list[str]:
    if len(window) <= 1 or fits(window):
        return [window]
    middle = len(window) // 2
    ends = [stop for _, stop in split_sentences(window)][:-1]
    spaces = [at for at in (window.rfind(" ", 1, middle), window.find(" ", middle)) if at > 0]
    places = ends or spaces or [middle]
    cut = min(places, key=lambda place: abs(place - middle))
    halves = (window[:cut].strip(), window[cut:].strip())
    return [piece for half in halves if half for piece in _halve(half, fits)]
