"""Probabilistic programs: densities with gradients, steps of samplers, variational inference, Gaussian processes."""

from __future__ import annotations

from typing import Any

from tests.upstream.registry import Built, Draw, program


@program("numpyro")
def numpyro_logistic(draw: Draw) -> Built:
    import jax
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist
    from numpyro.infer.util import potential_energy

    def model(x: Any, y: Any) -> None:
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        weights = numpyro.sample("weights", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)

    def energy(params: Any, x: Any, y: Any) -> Any:
        return potential_energy(model, (x, y), {}, params)

    params = {"scale": jnp.float32(0.3), "weights": jnp.asarray(draw.normal(20)), "intercept": jnp.float32(0.1)}
    return Built(jax.value_and_grad(energy), (params, draw.normal(500, 20), (draw.normal(500) > 0).astype("float32")))


@program("numpyro")
def numpyro_svi(draw: Draw) -> Built:
    import jax
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(groups: Any, x: Any, y: Any) -> None:
        centre = numpyro.sample("centre", dist.Normal(0.0, 5.0))
        spread = numpyro.sample("spread", dist.HalfNormal(2.0))
        with numpyro.plate("group", 8):
            slope = numpyro.sample("slope", dist.Normal(centre, spread))
        noise = numpyro.sample("noise", dist.Exponential(1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope[groups] * x, noise), obs=y)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=4))
    data = (draw.integers(8, 200), draw.normal(200), draw.normal(200))
    return Built(svi.update, (svi.init(jax.random.key(0), *data), *data))


def _regression(draw: Draw) -> Any:
    from jax import numpy as jnp
    from jax.scipy import stats

    x, y = jnp.asarray(draw.normal(200, 5)), jnp.asarray(draw.normal(200))

    def logdensity(position: Any) -> Any:
        scale = jnp.exp(position["log_scale"])
        prior = stats.norm.logpdf(position["weights"], 0.0, 2.0).sum() + stats.norm.logpdf(position["log_scale"])
        return prior + stats.norm.logpdf(y, x @ position["weights"], scale).sum()

    return logdensity, {"weights": jnp.zeros(5), "log_scale": jnp.float32(0.0)}


@program("blackjax")
def blackjax_hmc(draw: Draw) -> Built:
    import blackjax
    import jax
    from jax import numpy as jnp

    logdensity, position = _regression(draw)
    hmc = blackjax.hmc(logdensity, step_size=1e-2, inverse_mass_matrix=jnp.ones(6), num_integration_steps=10)
    return Built(hmc.step, (jax.random.key(0), hmc.init(position)))


@program("blackjax")
def blackjax_nuts_chain(draw: Draw) -> Built:
    import blackjax
    import jax
    from jax import numpy as jnp

    logdensity, position = _regression(draw)
    nuts = blackjax.nuts(logdensity, step_size=5e-2, inverse_mass_matrix=jnp.ones(6))

    def chain(key: Any, state: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, _ = nuts.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(key, 5))

    return Built(chain, (jax.random.key(0), nuts.init(position)))


@program("distrax")
def distrax_mixture(draw: Draw) -> Built:
    import distrax
    import jax

    def negative_log_likelihood(params: Any, x: Any) -> Any:
        mixture = distrax.MixtureSameFamily(
            mixture_distribution=distrax.Categorical(logits=params["logits"]),
            components_distribution=distrax.MultivariateNormalDiag(
                loc=params["loc"], scale_diag=jax.nn.softplus(params["scale"])
            ),
        )
        return -mixture.log_prob(x).mean()

    params = {"logits": draw.normal(6), "loc": draw.normal(6, 4), "scale": draw.normal(6, 4)}
    return Built(jax.value_and_grad(negative_log_likelihood), (params, draw.normal(256, 4)))


@program("distrax")
def distrax_spline_flow(draw: Draw) -> Built:
    import distrax
    import jax
    from jax import numpy as jnp

    bins, size = 8, 4

    def flow(params: Any) -> Any:
        layers = []
        for i, (w, v) in enumerate(params):

            def conditioner(x: Any, w: Any = w, v: Any = v) -> Any:
                return (jnp.tanh(x @ w) @ v).reshape(*x.shape, 3 * bins + 1)

            mask = jnp.arange(size) % 2 == i % 2
            spline = lambda p: distrax.RationalQuadraticSpline(p, range_min=-4.0, range_max=4.0)  # noqa: E731
            layers.append(distrax.MaskedCoupling(mask=mask, bijector=spline, conditioner=conditioner))
        base = distrax.MultivariateNormalDiag(jnp.zeros(size), jnp.ones(size))
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))

    def loss(params: Any, x: Any) -> Any:
        return -flow(params).log_prob(x).mean()

    params = [(0.3 * draw.normal(size, 32), 0.3 * draw.normal(32, size * (3 * bins + 1))) for _ in range(2)]
    return Built(jax.value_and_grad(loss), (params, draw.uniform(64, size, low=-2.0, high=2.0)))


@program("tensorflow_probability")
def tfp_hmc(draw: Draw) -> Built:
    import jax
    from jax import numpy as jnp
    from tensorflow_probability.substrates import jax as tfp

    tfd = tfp.distributions
    x, counts = jnp.asarray(draw.normal(100, 3)), jnp.asarray(draw.integers(6, 100), jnp.float32)

    def target(weights: Any) -> Any:
        prior = tfd.Sample(tfd.Normal(0.0, 1.0), 3).log_prob(weights)
        return prior + tfd.Independent(tfd.Poisson(log_rate=x @ weights), 1).log_prob(counts)

    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, step_size=0.02, num_leapfrog_steps=5)
    start = jnp.asarray(0.1 * draw.normal(3))

    def step(state: Any, results: Any, seed: Any) -> Any:
        state, results = kernel.one_step(state, results, seed=seed)
        return state, results.is_accepted, results.log_accept_ratio

    return Built(step, (start, kernel.bootstrap_results(start), jax.random.PRNGKey(0)))


@program("tinygp")
def tinygp_likelihood(draw: Draw) -> Built:
    import jax
    from jax import numpy as jnp
    from tinygp import GaussianProcess, kernels

    def loss(params: Any, x: Any, y: Any) -> Any:
        kernel = jnp.exp(params["log_amplitude"]) * kernels.Matern32(jnp.exp(params["log_scale"]))
        kernel += jnp.exp(params["log_periodic"]) * kernels.ExpSineSquared(scale=1.0, gamma=params["gamma"])
        gp = GaussianProcess(kernel, x, diag=jnp.exp(params["log_noise"]), mean=params["mean"])
        return -gp.log_probability(y)

    params = {
        name: jnp.float32(value)
        for name, value in (
            ("log_amplitude", 0.1),
            ("log_scale", 0.2),
            ("log_periodic", -0.5),
            ("gamma", 0.7),
            ("log_noise", -1.0),
            ("mean", 0.3),
        )
    }
    return Built(
        jax.value_and_grad(loss), (params, jnp.sort(jnp.asarray(draw.uniform(80, high=10.0))), draw.normal(80))
    )
