"""The best noise for steps on a strongly convex objective under a constant multiplier h: a convex problem.

d_{t+1} = d_t - eta (g_t + u_t), u = B w, p = g - mu d, q = L d - g, a = 1 - eta mu, b = 1 - eta L. That
E|d|^2 is at most a multiple of E|w|^2 follows from E<p, q> >= 0 and from w_t being independent of the past
exactly where max sum_{t >= 1} |d_t|^2 + h <p_t, q_t> is finite, over all g_1, g_2, … from d_1 = -eta beta_0:
from w_t on, whoever chooses the gradients knows what becomes of it. With s_t = d_t - eta g_t the maximum is
over a quadratic form with a tridiagonal Toeplitz matrix on a half-line, which factors; it is
eta^2 (mean(Psi |B|^2) - K B(rho)^2), and

    B(rho)^2 = beta_0^2 exp(mean of P log |B|^2),    P the Poisson kernel of rho,

a geometric mean, is concave in R = |B|^2. So mean(1 / R) (mean(Psi R) - K exp(mean(P log R))) has one
minimum, and its slope phi there bounds it by (mean sqrt(phi))^2 from below, for every R (Cauchy and Schwarz).
"""

import math

import numpy as np

from anechoic.algebra.circle import circle, gap_power


def best_with_constant_multiplier(condition, eta, h):
    """The least bound for L = 1 and d G^2 / (2 rho) = 1, and a bound of it from below.

    Args:
        h: of <p, q>, over the least that has room, 1 / (mu L); > 1.
    """
    a, b, h = 1.0 - eta / condition, 1.0 - eta, h * condition / eta**2
    own, across = 1.0 - h * a * b, h * (a + b)
    middle = (h - own) / across  # (1 + rho^2) / (2 rho)
    rho = middle - math.sqrt(middle**2 - 1.0)
    scale, ends = across / (2.0 * rho), 1.0 - rho

    def rows(angles):
        poisson = ends * (1.0 + rho) / gap_power(ends, np.square(np.sin(angles / 2)))
        return np.stack([poisson, np.sqrt(poisson)])

    points = circle(rows, ends / 16)
    poisson, weights = rows(points.angles)[0], points.weights
    wave = np.square(np.abs(2.0 * own + across * np.exp(1j * points.angles)))
    psi = own + wave * poisson / (4.0 * scale * ends * (1.0 + rho))
    lost = (2.0 * own + across * rho) ** 2 / (4.0 * scale * ends * (1.0 + rho))

    def total(power):
        """Of the norm and the error: where it is least they are equal, and so is their product."""
        return weights @ (1.0 / power + psi * power) - lost * math.exp(weights @ (poisson * np.log(power)))

    power = 1.0 / np.sqrt(psi)
    for _ in range(100):
        geometric = lost * math.exp(weights @ (poisson * np.log(power)))
        phi = psi - geometric * poisson / power
        gradient, along = weights * (phi - 1.0 / power**2), weights * poisson / power
        # the Hessian is diagonal but for a part of rank one
        curved = weights * (2.0 / power**3 + geometric * poisson / power**2)
        step, tilted = -gradient / curved, along / curved
        step += tilted * geometric * (along @ step) / (1.0 - geometric * (along @ tilted))
        gain, size = float(-gradient @ step), 1.0
        while (power + size * step).min() <= 0 or total(power + size * step) > total(
            power
        ) - 0.1 * size * gain:
            size /= 2.0
            if size < 1e-9:
                break
        if size < 1e-9 or gain < 1e-14 * total(power):
            break
        power = power + size * step
    geometric = lost * math.exp(weights @ (poisson * np.log(power)))
    phi = psi - geometric * poisson / power
    assert phi.min() > 0
    reached = (weights @ (1.0 / power)) * (weights @ (psi * power) - geometric)
    return eta**2 / 2 * float(reached), eta**2 / 2 * float(weights @ np.sqrt(phi)) ** 2
