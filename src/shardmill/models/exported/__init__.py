"""Models as ONNX or OpenVINO files: which file of a folder is used, what it says of itself, and how it runs.

`files`, `onnx` and `ir` read without any library; `encoder` needs OpenVINO, `runtime` ONNX Runtime. Safetensors win
where a folder has both. Design: docs/design/models-and-kernels.md
"""
