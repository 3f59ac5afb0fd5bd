"""The names that a description uses: of stored weights, and of activations."""

from __future__ import annotations

from shardmill.models.networks.arrays import ACTIVATIONS
from shardmill.models.networks.description import Linear, Norm
from shardmill.models.networks.stored import StoredWeights
from shardmill.models.networks.unknown import NotDescribed


class Names:
    """Stored names: weights of a model with a head have a prefix, which the encoder alone does not have.

    What stands `outside` the encoder has none.
    """

    def __init__(self, weights: StoredWeights, prefixes: tuple[str, ...]) -> None:
        self._weights = weights
        self._prefix = next((p for p in prefixes if any(name.startswith(p) for name in weights)), "")

    def __call__(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def has(self, name: str) -> bool:
        return self(name) in self._weights

    def linear(self, name: str, *, outside: bool = False) -> Linear:
        full = name if outside else self(name)
        return Linear(f"{full}.weight", f"{full}.bias" if f"{full}.bias" in self._weights else "")

    def norm(self, name: str, eps: float, *, centred: bool = True, outside: bool = False) -> Norm:
        linear = self.linear(name, outside=outside)
        # The oldest checkpoints call a norm's weight gamma.
        if linear.weight not in self._weights and linear.weight.removesuffix("weight") + "gamma" in self._weights:
            full = linear.weight.removesuffix("weight")
            return Norm(f"{full}gamma", eps, f"{full}beta", centred)
        return Norm(linear.weight, eps, linear.bias, centred)


def check_activation(name: str) -> str:
    """The name itself, if it is known."""
    if name not in ACTIVATIONS:
        raise NotDescribed(f"its activation is {name}")
    return name
