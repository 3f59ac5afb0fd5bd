"""A device plug-in of the kubelet, as NVIDIA's is one: it advertises devices, and says what a pod gets of them.

The protocol (v1beta1) has six small messages, which are written here by hand: a field is its number and its bytes.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.libraries import needed

grpc = needed("grpc")
# The kubelet's own folder, wherever its other files are.
FOLDER = Path("/var/lib/kubelet/device-plugins")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@contextlib.contextmanager
def device_plugin(resource: str, devices: Sequence[str]) -> Iterator[None]:
    """The node has these devices. A pod is given the names of its own, up to "::", in NVIDIA_VISIBLE_DEVICES."""
    socket, over = FOLDER / f"test-{uuid.uuid4().hex[:8]}.sock", threading.Event()

    def watch(_: bytes, context: Any) -> Iterator[bytes]:
        yield b"".join(_field(1, _field(1, each) + _field(2, "Healthy")) for each in devices)
        while context.is_active() and not over.wait(0.2):
            continue

    def allocate(asked: bytes, _: Any) -> bytes:
        answers = []
        for container in _read(asked, 1):
            names = [each.decode().partition("::")[0] for each in _read(container, 1)]
            answers.append(_field(1, _field(1, _field(1, VISIBLE) + _field(2, ",".join(names)))))
        return b"".join(answers)

    calls = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _, __: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watch),
        "Allocate": grpc.unary_unary_rpc_method_handler(allocate),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", calls),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{FOLDER}/kubelet.sock") as kubelet:
            asked = _field(1, "v1beta1") + _field(2, socket.name) + _field(3, resource)
            kubelet.unary_unary("/v1beta1.Registration/Register")(asked, wait_for_ready=True, timeout=60)
        yield
    finally:
        over.set()
        server.stop(1).wait()
        socket.unlink(missing_ok=True)


def _field(number: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + _number(len(raw)) + raw


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _read(message: bytes, wanted: int) -> Iterator[bytes]:
    """The fields of a number; all fields of these messages are bytes."""
    at = 0
    while at < len(message):
        number, at = message[at] >> 3, at + 1
        size = shift = 0
        while True:
            byte, at = message[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if number == wanted:
            yield message[at : at + size]
        at += size
