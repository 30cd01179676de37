"""Quantities that training logs are searched for."""

from __future__ import annotations

from typing import Literal, get_args

Quantity = Literal["loss", "grad_norm", "tokens_per_s", "mfu", "learning_rate"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


class UnknownQuantity(ValueError):
    """A tag for a quantity that logs are not searched for."""


def named_tags(tags: dict[str, str]) -> dict[Quantity, str]:
    """Return the tags by quantity.

    Raises:
        UnknownQuantity: an unknown name, or an empty tag.
    """
    found: dict[Quantity, str] = {}
    for name, tag in tags.items():
        place = QUANTITIES.index(name) if name in QUANTITIES else None
        if place is None or not tag.strip():
            raise UnknownQuantity(
                f"a tag {tag!r} for {name!r}: give QUANTITY=TAG with a quantity of {', '.join(QUANTITIES)}"
            )
        found[QUANTITIES[place]] = tag
    return found
