"""Private training in JAX with optax and correlated noise, without an engine: python examples/jax_optax.py

JAX computes the gradients of rows; anechoic clips and adds them up, and makes the noise. The order of the
rows is fixed, so nothing about sampling has to be kept secret. Needs `pip install jax optax`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import anechoic as an
from anechoic.functional import clip_and_sum


def main(epochs: int = 2, batch: int = 50, rows: int = 1000) -> float:
    """Train a softmax model on made-up data; return its accuracy there, which is for looking only."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 20)).astype(np.float32)
    y = (x @ rng.standard_normal((20, 3))).argmax(axis=1)

    def loss(weights, row, label):  # of one row
        return -jax.nn.log_softmax(row @ weights["w"] + weights["b"])[label]

    weights = {"w": jnp.zeros((20, 3)), "b": jnp.zeros(3)}
    flat, unravel = ravel_pytree(weights)
    plan = an.plan(
        examples=rows, batch_size=batch, epochs=epochs, epsilon=4.0, delta=1e-6, dimension=len(flat),
        random_sampling=False,
    )  # fmt: skip
    mechanism = plan.mechanism
    of_rows = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
    optimizer = optax.sgd(0.5)
    state, noise_state = optimizer.init(weights), (stream := mechanism.stream(len(flat))).init()
    for step in range(mechanism.steps):
        chosen = slice(step * batch % rows, step * batch % rows + batch)
        gradients = jax.tree.leaves(of_rows(weights, x[chosen], y[chosen]))  # in the order of `unravel`
        noise, noise_state = stream.next(noise_state)
        released = (clip_and_sum(gradients, mechanism.clip_norm) + noise) / mechanism.expected_batch_size
        updates, state = optimizer.update(unravel(jnp.asarray(released)), state)
        weights = optax.apply_updates(weights, updates)
    print(mechanism.epsilon(), "epsilon of all releases")
    return float(((x @ weights["w"] + weights["b"]).argmax(axis=1) == y).mean())


if __name__ == "__main__":
    print(f"{main():.3f}")
