"""The computation of every network, in the few operations that NumPy and OpenVINO both have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from shardmill.models.networks.description import Attention, EncoderNetwork, FeedForward, Head, Layer, Linear, Norm

Value = TypeVar("Value")


class Operations(ABC, Generic[Value]):
    """What a network is computed with. Hidden states have the shape (rows, tokens, width), ids (rows, tokens)."""

    @abstractmethod
    def look_up(self, table: str, ids: Value | None) -> Value:
        """The rows of a table; without ids, its first."""

    @abstractmethod
    def positions(self, ids: Value, after: int | None) -> Value:
        """0, 1, 2 … for all rows; or `after` + 1, + 2 … in each row, by the ids that are not `after`, which get it."""

    @abstractmethod
    def add(self, a: Value, b: Value) -> Value: ...

    @abstractmethod
    def multiply(self, a: Value, b: Value) -> Value: ...

    @abstractmethod
    def linear(self, x: Value, by: Linear) -> Value: ...

    def layer_linear(self, x: Value, by: Linear) -> Value:
        """The same for the matrices of layers, nearly all of the work: what computes less exactly does it here."""
        return self.linear(x, by)

    @abstractmethod
    def norm(self, x: Value, by: Norm) -> Value: ...

    @abstractmethod
    def activate(self, x: Value, name: str) -> Value: ...

    @abstractmethod
    def attend(self, query: Value, key: Value, value: Value, how: Attention, mask: Value) -> Value:
        """Attention of every token to those of its row that are there (`mask` 1) and within reach."""

    @abstractmethod
    def first(self, x: Value) -> Value:
        """The states of the first tokens."""

    @abstractmethod
    def mean(self, x: Value, mask: Value) -> Value:
        """The mean of the states of the tokens that are there."""


def run(network: EncoderNetwork, on: Operations[Value], ids: Value, mask: Value, types: Value | None = None) -> Value:
    """The states of the last layer, or what the head makes of them. Without `types` all tokens are of the first."""
    x = on.look_up(network.words, ids)
    if network.types:
        x = on.add(x, on.look_up(network.types, types))
    if network.positions is not None:
        x = on.add(x, on.look_up(network.positions.weight, on.positions(ids, network.positions.after)))
    if network.norm is not None:
        x = on.norm(x, network.norm)
    if network.project is not None:
        x = on.linear(x, network.project)
    for layer in network.layers:
        x = (_norms_first if network.norms_first else _norms_last)(on, x, layer, mask)
    if network.last_norm is not None:
        x = on.norm(x, network.last_norm)
    return x if network.head is None else _apply_head(on, x, network.head, mask)


def _norms_last(on: Operations[Value], x: Value, layer: Layer, mask: Value) -> Value:
    assert layer.attention_norm is not None
    x = on.norm(on.add(x, _attend(on, x, layer.attention, mask)), layer.attention_norm)
    return on.norm(on.add(x, _feed(on, x, layer.feed)), layer.feed_norm)


def _norms_first(on: Operations[Value], x: Value, layer: Layer, mask: Value) -> Value:
    before = x if layer.attention_norm is None else on.norm(x, layer.attention_norm)
    x = on.add(x, _attend(on, before, layer.attention, mask))
    return on.add(x, _feed(on, on.norm(x, layer.feed_norm), layer.feed))


def _attend(on: Operations[Value], x: Value, by: Attention, mask: Value) -> Value:
    query, key, value = (on.layer_linear(x, each) for each in (by.query, by.key, by.value))
    return on.layer_linear(on.attend(query, key, value, by, mask), by.output)


def _feed(on: Operations[Value], x: Value, by: FeedForward) -> Value:
    wide = on.activate(on.layer_linear(x, by.up), by.activation)
    if by.gate is not None:
        wide = on.multiply(wide, on.layer_linear(x, by.gate))
    return on.layer_linear(wide, by.down)


def _apply_head(on: Operations[Value], x: Value, head: Head, mask: Value) -> Value:
    if head.of == "mean":
        x = on.mean(x, mask)
    elif head.of == "first":
        x = on.first(x)
    return apply_steps(on, x, head)


def apply_steps(on: Operations[Value], x: Value, head: Head) -> Value:
    """What the steps of a head make of states."""
    for linear, activation, norm in head.steps:
        x = on.linear(x, linear)
        x = on.activate(x, activation) if activation else x
        x = x if norm is None else on.norm(x, norm)
    return x
