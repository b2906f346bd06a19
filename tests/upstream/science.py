"""Simulations, graphs and solvers."""

from __future__ import annotations

from typing import Any

from tests.upstream.registry import Built, Draw, program


@program("diffrax")
def diffrax_lotka_volterra(draw: Draw) -> Built:
    import diffrax
    from jax import numpy as jnp

    def field(t: Any, y: Any, rates: Any) -> Any:
        prey, predators = y
        a, b, c, d = rates
        return a * prey - b * prey * predators, -c * predators + d * prey * predators

    def solve(start: Any, rates: Any) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=20.0,
            dt0=0.1,
            y0=start,
            args=rates,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 20.0, 50)),
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            max_steps=1024,
            throw=False,
        )
        return solution.ys

    return Built(solve, ((jnp.float32(10.0), jnp.float32(10.0)), jnp.array([0.1, 0.02, 0.4, 0.02])))


@program("diffrax")
def diffrax_neural_ode(draw: Draw) -> Built:
    import diffrax
    import equinox as eqx
    import jax
    from jax import numpy as jnp

    net = eqx.nn.MLP(in_size=3, out_size=3, width_size=32, depth=2, activation=jax.nn.softplus, key=jax.random.key(0))
    arrays, rest = eqx.partition(net, eqx.is_inexact_array)
    times = jnp.linspace(0.0, 1.0, 11)

    def trajectory(net: Any, start: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, net: net(y)),
            diffrax.Heun(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=start,
            args=net,
            saveat=diffrax.SaveAt(ts=times),
            max_steps=16,
            throw=False,
        ).ys

    def loss(arrays: Any, starts: Any, wanted: Any) -> Any:
        net = eqx.combine(arrays, rest)
        return jnp.mean((jax.vmap(trajectory, (None, 0))(net, starts) - wanted) ** 2)

    return Built(jax.value_and_grad(loss), (arrays, draw.normal(16, 3), draw.normal(16, 11, 3)))


def _graph(draw: Draw, nodes: int, edges: int, features: int) -> Any:
    import jraph
    from jax import numpy as jnp

    return jraph.GraphsTuple(
        nodes=jnp.asarray(draw.normal(nodes, features)),
        edges=jnp.asarray(draw.normal(edges, 8)),
        senders=jnp.asarray(draw.integers(nodes, edges)),
        receivers=jnp.asarray(draw.integers(nodes, edges)),
        n_node=jnp.array([nodes // 2, nodes - nodes // 2]),
        n_edge=jnp.array([edges // 2, edges - edges // 2]),
        globals=jnp.asarray(draw.normal(2, 4)),
    )


@program("jraph")
def jraph_network(draw: Draw) -> Built:
    import jax
    import jraph

    graph = _graph(draw, 60, 240, 16)
    params = {
        "edge": 0.2 * draw.normal(8 + 16 + 16 + 4, 24),
        "node": 0.2 * draw.normal(16 + 24 + 24 + 4, 16),
        "global": 0.2 * draw.normal(16 + 24 + 4, 4),
    }

    def forward(params: Any, graph: Any) -> Any:
        def layer(name: str) -> Any:
            return jraph.concatenated_args(lambda x: jax.nn.relu(x @ params[name]))

        return jraph.GraphNetwork(layer("edge"), layer("node"), layer("global"))(graph)

    return Built(forward, (params, graph), options={"frozen": 0})


@program("jraph")
def jraph_convolution(draw: Draw) -> Built:
    import jax
    import jraph
    from jax import numpy as jnp

    graph, labels = _graph(draw, 100, 400, 32), draw.integers(5, 100)
    params = [0.2 * draw.normal(32, 64), 0.2 * draw.normal(64, 5)]

    def loss(params: Any, graph: Any, labels: Any) -> Any:
        first = jraph.GraphConvolution(lambda x: x @ params[0], add_self_edges=True)
        second = jraph.GraphConvolution(lambda x: x @ params[1], add_self_edges=True)
        hidden = first(graph)
        logits = second(hidden._replace(nodes=jax.nn.relu(hidden.nodes))).nodes
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 5) * jax.nn.log_softmax(logits), axis=-1))

    return Built(jax.value_and_grad(loss), (params, graph, labels))


@program("e3nn_jax")
def e3nn_message_passing(draw: Draw) -> Built:
    import e3nn_jax as e3nn
    import jax
    from e3nn_jax.flax import Linear
    from flax import linen as nn
    from jax import numpy as jnp

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, positions: Any, features: Any, senders: Any, receivers: Any) -> Any:
            vectors = e3nn.IrrepsArray("1o", positions[receivers] - positions[senders])
            directions = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
            messages = e3nn.concatenate([features[senders], e3nn.tensor_product(features[senders], directions)])
            sums = e3nn.scatter_sum(messages.regroup(), dst=receivers, output_size=len(positions))
            return e3nn.gate(Linear("8x0e + 4x0e + 4x1o")(sums / 3.0))

    model = Layer()
    positions = jnp.asarray(draw.normal(24, 3))
    features = e3nn.IrrepsArray("4x0e + 2x1o", jnp.asarray(draw.normal(24, 10)))
    edges = jnp.asarray(draw.integers(24, 96)), jnp.asarray(draw.integers(24, 96))
    params = jax.jit(model.init)(jax.random.key(0), positions, features, *edges)
    return Built(
        lambda params, *graph: model.apply(params, *graph),
        (params, positions, features, *edges),
        options={"frozen": 0},
    )


@program("brax")
def brax_env_step(draw: Draw) -> Built:
    import jax
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="spring")
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 32))
    return Built(jax.vmap(env.step), (states, draw.uniform(32, 1, low=-1.0)))


_PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body pos="0 0 1">
      <joint name="shoulder" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0 0 -0.5" mass="1"/>
      <body pos="0 0 -0.5">
        <joint name="elbow" type="hinge" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.5" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="shoulder" gear="2"/></actuator>
</mujoco>
"""


@program("mujoco.mjx")
def mjx_pendulum_step(draw: Draw) -> Built:
    import mujoco
    from jax import numpy as jnp
    from mujoco import mjx

    model = mjx.put_model(mujoco.MjModel.from_xml_string(_PENDULUM))
    data = mjx.make_data(model)

    def step(qpos: Any, qvel: Any, ctrl: Any) -> Any:
        after = mjx.step(model, data.replace(qpos=qpos, qvel=qvel, ctrl=ctrl))
        return after.qpos, after.qvel

    return Built(step, (jnp.array([0.4, -0.2]), jnp.array([0.1, 0.3]), jnp.array([0.5])))


@program("jax_md")
def jax_md_verlet(draw: Draw) -> Built:
    import jax
    from jax import numpy as jnp
    from jax_md import energy, simulate, space

    count, box = 64, 8.0
    displacement, shift = space.periodic(box)
    init, apply = simulate.nve(energy.lennard_jones_pair(displacement), shift, dt=1e-3)
    lattice = jnp.stack(jnp.meshgrid(*[jnp.arange(4.0)] * 3, indexing="ij"), axis=-1).reshape(count, 3) * 2.0
    state = init(jax.random.key(0), lattice + 0.1 * draw.normal(count, 3), kT=0.5)

    def ten_steps(state: Any) -> Any:
        return jax.lax.fori_loop(0, 10, lambda i, state: apply(state), state)

    return Built(ten_steps, (state,))


@program("jaxopt")
def jaxopt_lbfgs(draw: Draw) -> Built:
    import jaxopt
    from jax import numpy as jnp
    from jaxopt import objective

    solver = jaxopt.LBFGS(fun=objective.l2_multiclass_logreg, maxiter=20, tol=0.0, linesearch="backtracking")

    def fit(weights: Any, strength: Any, x: Any, y: Any) -> Any:
        return solver.run(weights, l2reg=strength, data=(x, y)).params

    return Built(fit, (jnp.zeros((10, 4)), jnp.float32(0.1), draw.normal(200, 10), draw.integers(4, 200)))


@program("optimistix")
def optimistix_curve_fit(draw: Draw) -> Built:
    import optimistix
    from jax import numpy as jnp

    def residuals(params: Any, data: Any) -> Any:
        x, y = data
        return params["a"] * jnp.exp(-params["b"] * x) + params["c"] - y

    solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)

    def fit(params: Any, data: Any) -> Any:
        return optimistix.least_squares(residuals, solver, params, data, max_steps=64, throw=False).value

    x = jnp.linspace(0.0, 4.0, 100)
    y = 2.5 * jnp.exp(-1.3 * x) + 0.5 + 0.05 * draw.normal(100)
    return Built(fit, ({"a": jnp.float32(1.0), "b": jnp.float32(1.0), "c": jnp.float32(0.0)}, (x, y)))


@program("lineax")
def lineax_ridge(draw: Draw) -> Built:
    import jax
    import lineax
    from jax import numpy as jnp

    def solve(x: Any, y: Any, strength: Any) -> Any:
        gram = x.T @ x + strength * jnp.eye(x.shape[1])
        operator = lineax.MatrixLinearOperator(gram, lineax.positive_semidefinite_tag)
        direct = lineax.linear_solve(operator, x.T @ y, lineax.Cholesky(), throw=False).value
        iterative = lineax.linear_solve(
            operator, x.T @ y, lineax.CG(rtol=1e-5, atol=1e-5, max_steps=50), throw=False
        ).value
        return direct, iterative

    def fit(x: Any, y: Any, strength: Any) -> Any:
        return jax.value_and_grad(lambda s: jnp.sum((x @ solve(x, y, s)[0] - y) ** 2))(strength), solve(x, y, strength)

    return Built(fit, (draw.normal(120, 16), draw.normal(120), jnp.float32(1.0)))
