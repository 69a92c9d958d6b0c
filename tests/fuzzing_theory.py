"""The same for `theory`: every public function of it, by name."""

import math

import numpy as np

import anechoic as an
from anechoic import participation, sampling, theory
from anechoic.strategies import BandedToeplitz, endless
from anechoic.theory import ftrl, gradient_descent, learning, optimal
from anechoic.theory.ftrl import contraction_rho, population_risk_orders
from anechoic.theory.gradient_descent import (
    convex_bound,
    gradient_norms,
    named_factorizations,
    nonconvex_bound,
    restart_terms,
)
from anechoic.theory.learning import damped_toeplitz_risk, effective_dimension
from anechoic.theory.lq_noise import ExponentialPower, gaussian_clip_norm, lq_epsilon
from anechoic.theory.mirror import AllSpace, Entropy, Euclidean, PNorm, optimality_gap
from anechoic.theory.optimal import asymptotic_loss
from anechoic.theory.problems import MeanEstimation
from anechoic.theory.regression import (
    clipping_probability,
    finite_time_rates,
    half_exponential_decay,
    theorem_d13,
)
from anechoic.theory.spectra import spectrum


def function(name):
    """A function of the room, or of one of its modules."""
    modules = (theory, ftrl, gradient_descent, learning, optimal)
    return next(vars(module)[name] for module in modules if name in vars(module))


class Theory:
    """Calls of `theory`, for a `fuzzing.Drawer`."""

    def positive(self):
        return self.number(1e-3, 1e3)

    def eigenvalues(self):
        values = self.rng.random(self.size(5)) ** self.of(1, 1, 4, 20)
        if self.rng.random() < 0.05:
            values[0] = self.of(*[odd for odd in self.ODD if isinstance(odd, float)])
        return self.odd(values, 0.03)

    def regression(self):
        return theory.LinearRegression(
            self.eigenvalues(),
            self.of(self.number(1e-3, 0.2), self.number(1e-4, 2.0)),
            residual_std=self.number(1e-3, 10.0),
            batch_size=self.of(1, 1, self.whole(1, 1e3)),
        )

    def problem(self):
        if self.rng.random() < 0.6:
            return self.regression()
        return MeanEstimation(
            self.number(1e-4, 2.0),
            residual_std=self.number(1e-3, 10.0),
            dimension=self.whole(1, 1e4),
            batch_size=self.whole(1, 1e3),
        )

    def curved(self):
        return theory.StronglyConvex(
            self.number(1.0, 1e4),
            self.number(1e-3, 1.0),
            smoothness=self.positive(),
            dimension=self.whole(1, 1e4),
            gradient_std=self.number(1e-3, 10.0),
        )

    def endless(self):
        made = [
            lambda: endless.damped(self.number(1e-5, 1.0)),
            lambda: endless.rational(buffers=self.odd(self.size(6)), accurate_to=self.whole(2, 1e5)),
            lambda: endless.EndlessBands(np.append(1.0, 0.4 * self.vector(self.size(4) - 1))),
            lambda: endless.EndlessInverse(np.append(1.0, 0.2 * self.vector(self.size(3) - 1))),
            lambda: endless.EndlessBLT(np.abs(self.vector(2)), self.rng.random(2)),
            lambda: endless.series(np.append(1.0, 0.3 * self.vector(self.size(4) - 1))),
        ]
        return self.of(*made)()

    def mechanism(self):
        how = {"epsilon": self.number(0.1, 10.0), "delta": self.number(1e-9, 0.1)}
        return an.calibrate_endless(self.endless(), batch_size=self.of(1, self.whole(1, 100)), **how)

    def noise(self):
        """Noise, and rho where it has none of its own."""
        if self.rng.random() < 0.2:
            return self.mechanism(), {}
        return self.endless(), {"rho": self.number(1e-3, 10.0)}

    def exact(self, name):
        problem, (noise, how) = self.problem(), self.noise()
        if name == "asymptotic_loss":
            return asymptotic_loss(problem, self.endless())
        if name == "asymptotic_suboptimality":
            return theory.asymptotic_suboptimality(problem, noise, **how, clip_norm=self.positive())
        start = {"displacement": self.of(None, None, self.vector(self.size(5)))}
        if name == "trajectory":
            return theory.trajectory(problem, noise, steps=self.whole(1, 200), **start, **how)
        problem = self.regression()
        if name == "gradient_norms":
            return gradient_norms(problem, self.mechanism(), steps=self.whole(1, 200), **start)
        if name == "clipping_probability":
            steps = self.whole(1, 200)
            return clipping_probability(
                problem, noise, steps=steps, clip_norm=self.positive(), **start, **how
            )
        if name == "regression_bounds":
            return theory.regression_bounds(problem, noise, kurtosis=self.number(1.0, 30.0), **how)
        displacement = self.vector(self.of(self.size(5), *3 * [len(problem.eigenvalues)]))
        if name == "finite_time_bound":
            return theory.finite_time_bound(
                problem, noise, steps=self.whole(1, 1e4), displacement=displacement, **how
            )
        return theorem_d13(
            problem,
            noise,
            steps=self.whole(1, 1e4),
            probability=self.number(1e-6, 1.0),
            rho=self.positive(),
            displacement=displacement,
            decay_rate=self.of(None, self.number(1e-4, 1.0)),
        )

    def best_noise(self, name):
        problem = self.problem()
        if name in ("banded_noise", "banded_inverse_noise"):
            return function(name)(problem, bands=self.odd(self.size(6)))
        if name == "blt_noise":
            return theory.blt_noise(problem, buffers=self.odd(self.size(4)))
        return function(name)(problem)

    def curved_bounds(self, name):
        how = {"rho": self.positive(), "causal": self.of(True, False), "terms": self.odd(self.of(4, 8))}
        if name == "optimized_strongly_convex_bound":
            return theory.optimized_strongly_convex_bound(self.curved(), **how, turns=self.odd(2))
        return theory.strongly_convex_bound(self.curved(), self.endless(), **how)

    def descent(self, name):
        n = self.size(12)
        if name == "named_factorizations":
            return named_factorizations(self.odd(n))
        if name == "restart_terms":
            return restart_terms(self.strategy(n), self.odd(self.size(n)))
        how = {"smoothness": self.number(1e-2, 10.0), "sigma": self.positive()}
        if name == "convex_bound":
            return convex_bound(
                self.strategy(n), period=self.odd(self.size(n)), distance=self.positive(), **how
            )
        if name == "nonconvex_bound":
            return nonconvex_bound(
                self.strategy(n), period=self.odd(self.size(n)), start_gap=self.positive(), **how
            )
        return function(name)(
            steps=self.whole(1, 1e6), rate=self.number(1e-3, 10.0), distance=self.positive(), **how
        )

    def orders(self, name):
        if name == "population_risk_orders":
            return population_risk_orders(
                self.whole(1, 1e6), self.whole(1, 1e4), self.positive(), lipschitz=self.positive()
            )
        if name in ("convex_risk", "realizable_convex_risk"):
            return function(name)(self.whole(1, 1e6), self.whole(1, 1e4), self.positive())
        values = self.eigenvalues()
        if name == "effective_dimension":
            return effective_dimension(values)
        if name == "finite_time_rates":
            return finite_time_rates(
                values,
                steps=self.whole(1, 1e6),
                rho=self.positive(),
                distance=self.positive(),
                residual_std=self.positive(),
            )
        rest = (self.number(1e-4, 2.0), self.positive())
        if name == "damped_toeplitz_risk":
            return damped_toeplitz_risk(values, *rest, self.number(1e-8, 1e-2))
        return function(name)(values, *rest)

    def excess(self, name):
        steps = self.whole(1, 1e6)
        if name == "contraction_rho":
            rest = {"sensitivity": self.positive(), "noise_std": self.positive()}
            return contraction_rho(steps=steps, fade=self.number(1e-3, 1.0), **rest)
        if name == "last_iterate_rho":
            rest = {"smoothness": self.number(0.01, 10.0), "rate": self.number(0.01, 1.0)}
            rest["lipschitz"] = self.positive()
            where = {"steps": steps, "position": self.whole(1, 1e3)}
            return theory.last_iterate_rho(**where, **rest, noise_std=self.positive())
        how = {"gradient_bound": self.positive(), "distance": self.positive()}
        if name != "anytime_excess":
            how["rate"] = self.of(None, self.positive())
        return function(name)(steps, **how)

    def lq(self, name):
        q = self.of(2.0, 3.0, 4.0, self.number(1.0, 30.0))
        if name == "gaussian_clip_norm":
            return gaussian_clip_norm(self.positive(), q, self.whole(1, 1e6))
        n = self.size(4)
        return lq_epsilon(
            self.strategy(n),
            ExponentialPower(q, self.number(1e-2, 1e2)),
            norm=self.positive(),
            dimension=self.whole(1, 1e3),
            delta=self.number(1e-12, 0.5),
            orders=self.odd((1.5, 2.0, 4.0)),
        )

    def domain(self):
        made = [
            AllSpace,
            lambda: theory.Ball(self.positive(), p=self.odd(self.of(1.0, 1.5, 2.0, math.inf))),
            lambda: theory.Simplex(self.positive()),
        ]
        return self.of(*made)()

    def potential(self):
        return self.of(Euclidean, Entropy, lambda: PNorm(self.number(1.01, 3.0)))()

    def mirror(self, name):
        y = self.odd(self.vector(self.size(6)), 0.03)
        if name == "l1_step":
            return theory.l1_step(y, self.positive(), self.positive())
        potential, domain, rate = self.potential(), self.domain(), self.positive()
        w = theory.mirror_step(y, rate, potential, domain)
        if name == "optimality_gap":
            return optimality_gap(self.of(w, self.vector(len(w))), y, rate, potential, domain)
        if name == "mirror_step":
            return w
        n = self.size(6)
        how = sampling.External(participation.Single(), 1, steps=n)
        mechanism = an.Mechanism(BandedToeplitz(n, [1.0, 0.5][:n]), how, self.number(1e-3, 1e3))
        ftrl = theory.PrivateFTRL(mechanism, rate, potential=potential, domain=domain)
        return ftrl.run(lambda t, w: self.vector(3), dimension=self.odd(3), key=bytes(32))

    def spectra(self, name):
        noise = spectrum(self.of(self.endless, lambda: self.noise()[0])())
        if name == "spectrum":
            return noise.gamma, noise.energy, noise.power(self.number(1e-6, 3.0))
        return half_exponential_decay(
            self.endless(), steps=self.whole(1, 1e6), decay_rate=self.number(1e-4, 1.0)
        )

    def theories(self):
        name = self.of(*THEORY)
        return THEORY[name](self, name)


#: Who calls which function of `theory`. Classes are made on the way.
THEORY = {
    name: call
    for call, names in {
        Theory.exact: "asymptotic_loss asymptotic_suboptimality trajectory gradient_norms"
        " clipping_probability regression_bounds finite_time_bound theorem_d13",
        Theory.curved_bounds: "strongly_convex_bound",
        Theory.descent: "anti_pgd_bound convex_bound named_factorizations nonconvex_bound pgd_bound"
        " restart_terms",
        Theory.orders: "population_risk_orders finite_time_rates convex_risk damped_toeplitz_risk"
        " effective_dimension independent_noise_risk realizable_convex_risk smallest_toeplitz_risk",
        Theory.excess: "anytime_excess average_excess last_iterate_excess contraction_rho last_iterate_rho",
        Theory.lq: "gaussian_clip_norm lq_epsilon",
        Theory.mirror: "l1_step mirror_step optimality_gap PrivateFTRL",
        Theory.spectra: "spectrum half_exponential_decay",
        Theory.best_noise: "anti_pgd_noise banded_inverse_noise banded_noise blt_noise damped_noise"
        " independent_noise optimal_noise",
    }.items()
    for name in names.split()
}
THEORY["optimized_strongly_convex_bound"] = Theory.curved_bounds
