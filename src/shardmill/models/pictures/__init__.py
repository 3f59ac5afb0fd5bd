"""Models of pictures: which folders are such, how a picture becomes pixels, and how pixels become a vector.

`pixels` runs in helper processes and imports neither NumPy nor torch; `encoder` alone imports torch.

Design: docs/design/pictures.md
"""
