"""Objects of which there is one: a copy would use the same noise rows again."""

from __future__ import annotations

from typing import Any, NoReturn


class Uncopyable:
    """Mixin that refuses copy.copy, copy.deepcopy and pickle.

    Raises:
        TypeError: always; it names what to do.
    """

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: the copy would make releases with the same"
            " noise rows, and their difference would show gradients. Copy the model alone, keep"
            " optimizer.state_dict(), and save a run with PrivacyEngine.save_checkpoint."
        )
