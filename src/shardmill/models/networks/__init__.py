"""Encoders without torch: one description of a network, from which OpenVINO's graph and a plain NumPy one are built.

`describe` reads a folder; `ArrayNetwork` computes with NumPy, `build_graph` makes a graph for OpenVINO.
Design: docs/design/models-and-kernels.md
"""
