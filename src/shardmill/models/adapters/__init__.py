"""LoRA adapters in PEFT's folders, merged into a base model before anything reads its weights.

Design: docs/design/kinds-of-models.md
"""
