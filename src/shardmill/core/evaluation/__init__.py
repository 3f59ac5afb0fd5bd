"""Figures for answers, by pure functions: rankings by BEIR's rules, texts by SQuAD's."""
