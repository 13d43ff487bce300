"""Agents: what each makes of the same belief, checked where the answer is known."""

from math import erf, sqrt

import numpy as np
import pytest

from ube import UsageError, acting
from ube.tabular import Belief, kernels, learning_kernels, solve
from ube.tabular.agents import AGENTS, EVALUATED, NOISES, Agent
from ube.tabular.mdp import MDP, chain, deep_sea, random_layered, river_swim, tree
from ube.tabular.simulate import Cell, Learner, Stop, episodes_to_solve, run_cells
from ube.tabular.solver import compiled_problem


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def run(mdp: MDP, belief: Belief, agent: Agent, episodes: int, seed: int = 0, **options: bool) -> np.ndarray:
    return Learner(mdp, belief, agent).run(episodes, rng(seed), **options)


def bandit(means: tuple[float, float]) -> MDP:
    """A chain of one state: two actions, each paying once."""
    return chain(1, means)


def first_actions(belief: Belief, mdp: MDP, agent: Agent, seeds: int) -> float:
    """How often the first episode takes action 1 at the root."""
    paid = [run(mdp, belief, agent, 1, seed)[0] for seed in range(seeds)]
    return float(np.mean(np.array(paid) == mdp.reward_mean[2]))


def root_belief(mdp: MDP, centres: tuple[float, float], spreads: tuple[float, float]) -> Belief:
    """Known entry, and the given belief about what each branch of a bandit pays."""
    belief = mdp.belief(reward_var=0.0)
    belief.rewards.centre[[0, 2]] = centres
    belief.rewards.spread[[0, 2]] = spreads
    return belief


def plan(belief: Belief, method: int, mode: int, zeta: np.ndarray) -> kernels.Tables:
    """One backward pass with the given noise."""
    graph = belief.graph
    slot, n_slots = graph.slots
    n = graph.n_rows
    tables = kernels.empty_tables(graph.n_nodes, graph.n_actions, n_slots)
    posterior = kernels.Posterior(belief.alpha, belief.total, belief.rewards.mean, belief.rewards.variance)
    rule = kernels.Rule(method, mode, 1.0, zeta, np.zeros(n), np.zeros(n), np.full(n, np.inf))
    kernels.backward(compiled_problem(belief, slot), posterior, rule, tables)
    return tables


def test_the_index_of_equation_3() -> None:
    assert acting.perturbed(1.0, 4.0, -0.5, 3.0) == 1.0 + 3.0 * -0.5 * 2.0
    q, u = np.array([1.0, 2.0]), np.array([9.0, 1.0])
    assert np.array_equal(acting.perturbed(q, u, np.ones(2), 0.5), [2.5, 2.5])


def test_per_step_noise_prefers_an_action_as_often_as_the_normal_law_says() -> None:
    # P(N(0.3, 1) > N(0, 0.25)) = Φ(0.3 / sqrt(1.25)) = 0.6058
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (0.0, 0.3), (0.25, 1.0))
    share = first_actions(belief, mdp, AGENTS["ube-thompson"], 4000)
    assert share == pytest.approx(0.6058, abs=4 * np.sqrt(0.25 / 4000))


def test_one_scalar_per_episode_takes_the_uncertain_action_half_the_time_when_means_tie() -> None:
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (0.0, 0.0), (0.25, 1.0))
    assert first_actions(belief, mdp, AGENTS["ube-episode"], 2000) == pytest.approx(0.5, abs=0.05)
    assert first_actions(belief, mdp, AGENTS["ube-ucb"], 20) == 1.0


def test_psrl_and_joint_thompson_sample_the_same_law_when_only_rewards_are_unknown() -> None:
    # P(N(0.3, 1) > N(0, 0.25)) again: both draw each branch's value from its posterior
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (0.0, 0.3), (0.25, 1.0))
    for name in ("psrl", "ube-joint"):
        assert first_actions(belief, mdp, AGENTS[name], 4000) == pytest.approx(0.6058, abs=4 * np.sqrt(0.25 / 4000))


def test_joint_samples_have_the_exact_variance() -> None:
    """With one action there is one policy: the joint sample of the root's value is spread as `exact` says."""
    mdp = random_layered(4, 3, 1, rng(5))
    belief = mdp.belief(alpha=0.7, reward_var=0.3)
    exact = solve(belief, "uniform", "exact")
    draws = [plan(belief, kernels.EXACT, kernels.JOINT, rng(seed).standard_normal(15)) for seed in range(4000)]
    samples = np.array([tables.sampled[:3] for tables in draws])
    variance = samples.var(axis=0, ddof=1)
    assert np.abs(variance / exact.variance[0, :, 0] - 1).max() < 5 * np.sqrt(2 / 4000)
    assert np.abs(samples.mean(axis=0) - exact.q_mean[0, :, 0]).max() < 5 * np.sqrt(variance.max() / 4000)


def test_bonus_agent_compounds_standard_deviations_as_the_paper_says() -> None:
    """After n visits of each branch the bonus of action 2 is √H times that of action 1: it decides the root action."""
    length, n = 9, 4
    mdp = chain(length, (0.0, 0.0), sigma=1.0)
    belief = mdp.belief(reward_var=np.inf).updated(
        [(0, 0, 0.0, length + 1)] * n
        + [(0, 1, 0.0, 1)] * n
        + [(s, 0, 0.0, s + 1) for s in range(1, length + 1) for _ in range(n)]
    )
    # bonuses at t = 2 (log 2): β log2 · (1/2) against β log2 · (√9/2): a mean lead of action 1 below log2 · (3 - 1)/2 loses
    for lead, expected in ((0.68, 1), (0.71, 0)):
        belief.rewards.centre[0] = lead
        agent = AGENTS["bonus"].but(beta=1.0)
        taken = _root_action_at(mdp, belief, agent, episode=1)
        assert taken == expected


def _root_action_at(mdp: MDP, belief: Belief, agent: Agent, episode: int) -> int:
    """The action the agent would take at the root in a given episode, without learning in between."""
    learner, graph = Learner(mdp, belief, agent), belief.graph
    tables = kernels.empty_tables(graph.n_nodes, graph.n_actions, 0)
    scratch = learning_kernels.empty_scratch(graph.n_rows, len(belief.visits), len(belief.alpha))
    learning_kernels.plan(learner._problem, learner._prior(), learner._settings, scratch, tables, episode, rng())
    return int(tables.policy[0].argmax())


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5)])
def test_epsilon_greedy_dithers_as_often_as_it_says(epsilon: float, share: float) -> None:
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (1.0, 0.0), (0.0, 0.0))
    seen = first_actions(belief, mdp, AGENTS["epsilon-greedy"].but(epsilon=epsilon), 2000)
    assert seen == pytest.approx(share, abs=0.05)


def test_boltzmann_is_a_softmax() -> None:
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (0.2, 0.0), (0.0, 0.0))
    seen = first_actions(belief, mdp, AGENTS["boltzmann"].but(temperature=0.2), 4000)
    assert seen == pytest.approx(1 / (1 + np.e), abs=0.03)


def test_k_learning_on_a_bandit_is_a_softmax_of_mean_plus_variance_over_two_tau() -> None:
    mdp = bandit((0.0, 1.0))
    belief = root_belief(mdp, (0.0, 0.0), (0.1, 0.5))
    tau = 0.5  # episode 0: τ = β
    seen = first_actions(belief, mdp, AGENTS["k-learning"].but(beta=tau), 4000)
    gap = (0.5 - 0.1) / (2 * tau) / tau
    assert seen == pytest.approx(1 / (1 + np.exp(-gap)), abs=0.03)


def test_ucbvi_tries_everything_once_and_its_optimism_is_capped() -> None:
    mdp = tree(4, rng(2))
    returns = run(mdp, mdp.belief(), AGENTS["ucbvi"].but(beta=0.0), 20)
    assert returns[:4].sum() <= 1.0
    assert (returns[-10:] == 1.0).all()


def test_rlsvi_is_ridge_regression() -> None:
    """With one visit and noise variance β² = prior variance, the estimate is half the reward."""
    mdp = bandit((1.0, 0.0))
    agent = AGENTS["rlsvi"].but(beta=0.5, prior_std=0.5)
    share = []
    for seed in range(3000):
        returns = run(mdp, mdp.belief(), agent, 2, seed)
        if (
            returns[0] == 1.0
        ):  # visited branch 0 once: N(~0.5·r, 0.25/2), against the unvisited N(0, 0.25) + entry N(0, 0.25)
            share.append(returns[1] == 1.0)
    # reward of branch 0 is N(1, 1): mean 0.5, variance 0.25 + 0.125; the other branch 0.25 + 0.25
    expected = 0.5 * (1 + erf(0.5 / sqrt(0.375 + 0.5) / sqrt(2)))
    assert np.mean(share) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_repeats_to_the_bit_and_seeds_matter(name: str) -> None:
    mdp = river_swim(4, 8)
    belief = mdp.belief(noise_var=1.0)
    first, again, other = (run(mdp, belief, AGENTS[name], 30, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("variance", ["ube", "ube-horizon", "count", "pombu", "exact", "lower"])
@pytest.mark.parametrize(
    ("noise", "evaluate"), [(n, e) for n in NOISES for e in EVALUATED if (n, e) != ("joint", "greedy")]
)
def test_every_combination_learns_a_small_bandit(variance: str, noise: str, evaluate: str) -> None:
    mdp = bandit((0.0, 3.0))
    agent = Agent("any", variance=variance, noise=noise, evaluate=evaluate)
    returns = run(mdp, mdp.belief(noise_var=1.0), agent, 300)
    assert returns[-100:].mean() > 2.5


def test_exact_policy_values_average_the_trajectories() -> None:
    mdp = river_swim(4, 8)
    agent = Agent("uniform", kind="epsilon-greedy", epsilon=1.0)
    values = run(mdp, mdp.belief(), agent, 5, evaluate_policy=True)
    walks = run(mdp, mdp.belief(), agent, 20_000)
    assert np.ptp(values) < 1e-12
    assert walks.mean() == pytest.approx(values[0], abs=5 * walks.std() / 20_000**0.5)


def test_learning_in_the_loop_equals_the_conjugate_update() -> None:
    """Replay a run's data through `Belief.updated`: an agent that starts from the result acts as one that goes on."""
    mdp = deep_sea(5, rng(1))
    belief = mdp.belief(noise_var=0.5)
    episodes = 12
    whole = run(mdp, belief, AGENTS["ube-ucb"].but(variance="exact"), episodes)
    for cut in range(1, episodes):
        current = belief
        for _ in range(cut):
            policy = plan(current, kernels.EXACT, kernels.ACTING, np.ones(mdp.graph.n_rows)).policy
            node, data = 0, []
            while not mdp.graph.terminal[node]:
                action = int(policy[node].argmax())
                reward, following, _ = mdp.step(node, action, rng())
                layer = int(np.searchsorted(mdp.graph.layers, node, side="right")) - 1
                start, nxt = mdp.graph.layers[layer], (*mdp.graph.layers, mdp.graph.n_nodes)[layer + 1]
                data.append((layer, node - start, action, reward, following - nxt))
                node = following
            current = current.updated(data)
        tail = run(mdp, current, AGENTS["ube-ucb"].but(variance="exact"), 1)
        assert tail[0] == pytest.approx(whole[cut])


def solved(mdp_of: object, name: str, seeds: int, cap: int, **changes: object) -> list[int | None]:
    agent = AGENTS[name].but(**changes)

    def build(generator: np.random.Generator) -> Learner:
        mdp = mdp_of(generator)  # type: ignore[operator]
        return Learner(mdp, mdp.belief(), agent)

    return [episodes_to_solve(r.returns) for r in run_cells([Cell(build, cap, seed, Stop()) for seed in range(seeds)])]


def test_tree_of_depth_100_is_solved_by_optimism_and_by_one_scalar_per_episode() -> None:
    assert max(solved(lambda g: tree(100, g), "ube-ucb", 5, 400)) <= 110
    assert max(solved(lambda g: tree(100, g), "ube-episode", 5, 400)) <= 300


def test_noise_per_step_is_a_coin_toss_at_each_junction() -> None:
    """All values tie before the reward is seen, so the paper's agent needs about 2^L episodes: FACTS theory 6."""
    times = solved(lambda g: tree(8, g), "ube-thompson", 20, 20_000, variance="exact")
    first = np.array([t for t in times if t is not None])
    assert len(first) == 20
    assert 100 < first.mean() < 700  # geometric with mean 256, mean of 20
    assert solved(lambda g: tree(40, g), "ube-thompson", 3, 2000, variance="exact") == [None] * 3


def test_deepsea_50_takes_the_best_ube_no_longer_than_the_best_rival() -> None:
    ours = solved(lambda g: deep_sea(50, g), "ube-ucb", 3, 500, beta=0.3)
    rivals = [
        solved(lambda g: deep_sea(50, g), "ucbvi", 3, 500, beta=0.01),
        solved(lambda g: deep_sea(50, g), "psrl", 3, 500),
    ]
    assert max(ours) <= min(max(r) for r in rivals)


def test_chain_regret_is_at_most_a_third_of_the_best_bonus() -> None:
    mdp = chain(10)
    belief = mdp.belief(reward_var=np.inf)

    def regret(agent: Agent) -> float:
        learner = Learner(mdp, belief, agent)
        return float(np.mean([run.regret.sum() for run in run_cells([Cell(learner, 1000, s) for s in range(150)])]))

    best = min(regret(AGENTS["bonus"].but(beta=b)) for b in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6))
    assert regret(AGENTS["ube-thompson"]) <= best / 3


def test_threads_do_not_change_results() -> None:
    mdp = deep_sea(6, rng())
    learner = Learner(mdp, mdp.belief(), AGENTS["psrl"])
    cells = [Cell(learner, 50, seed) for seed in range(8)]
    one, two = ([run.returns for run in run_cells(cells, threads)] for threads in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_stopping_early_keeps_what_came_before() -> None:
    mdp = tree(5, rng())
    learner = Learner(mdp, mdp.belief(), AGENTS["ube-ucb"])
    whole, cut = learner.run(200, rng()), learner.run(200, rng(), Stop())
    assert len(cut) < 200
    assert np.array_equal(whole[: len(cut)], cut)
    assert (cut > 0.5).sum() == 10


@pytest.mark.parametrize(
    ("successes", "expected"),
    [
        (range(20, 30), 21),
        (range(20, 29), None),
        ([3, *range(200, 210)], 201),
        (range(0, 1000, 10), 1),
        (range(0, 1000, 12), None),
    ],
)
def test_solved_means_ten_of_a_hundred_from_a_success_on(successes: object, expected: int | None) -> None:
    returns = np.zeros(1000)
    returns[list(successes)] = 1.0  # type: ignore[call-overload]
    assert episodes_to_solve(returns) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "dqn"}, "kind='dqn': choose one of ube, bonus"),
        ({"variance": "delta"}, "needs a method that works in one backward pass"),
        ({"noise": "pink"}, "noise='pink'"),
        ({"kind": "bonus", "variance": "exact"}, "kind 'bonus' takes one of ube"),
        ({"noise": "joint", "evaluate": "greedy"}, "evaluate must be 'acting'"),
        ({"beta": -1.0}, "beta=-1.0: it must be finite and 0 or more"),
        ({"kind": "k-learning", "beta": 0.0}, "beta=0.0: it must be finite and above 0"),
        ({"epsilon": 1.5}, "epsilon=1.5: a probability is at most 1"),
    ],
)
def test_bad_agents_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Agent("x", **changes)  # type: ignore[arg-type]


def test_agents_need_an_end_and_normal_rewards() -> None:
    stationary = Belief.stationary(np.ones((2, 1, 2)), 0.0, 1.0, discount=0.9)
    with pytest.raises(UsageError, match="without cycles and with Normal rewards"):
        Learner(river_swim(2), stationary, AGENTS["psrl"])
