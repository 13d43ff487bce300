"""One frozen config for every agent; presets are values of it, and an ablation is a list of overrides."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ube.errors import UsageError, nearest
from ube.places import place_of
from ube.reading import parse_json

NETWORKS = ("auto", "mlp", "minatar", "nature")
Policy = Literal["epsilon-greedy", "noise-per-step", "noise-per-episode", "ucb", "unstructured-noise", "ensemble"]


@dataclass(frozen=True)
class OwnNetwork:
    """A trunk of one's own, as `ube.deep.networks.found_network` makes it of what was given."""

    place: str
    """module:NAME, or what only Python can give again."""
    module: Any
    """Of Flax."""


@dataclass(frozen=True)
class AgentConfig:
    """How an agent acts and what it regresses on. 0 and "auto" are filled in from the network (`NETWORK_DEFAULTS`)."""

    name: str = "custom"
    """Of the agent, in run directories and tables."""

    policy: Policy = "epsilon-greedy"
    """argmax of: Q, with random actions at rate ε | Q + βζ√u with ζ drawn per action and step (eq. 3), or once per
    episode, or ζ = 1 (ucb) | Q + βζ·(mean √u), noise of the same size without structure | one network of an ensemble,
    drawn per episode (in training per life, where a lost one ends the return). ε applies to every policy; with levels of
    optimism, to its greedy episodes."""
    beta: float = 0.01
    """Scale of the uncertainty in the policy."""
    beta_unit: Literal["one", "rewards", "returns"] = "one"
    """What β is measured in: 1; the largest reward so far (before the first positive one, the largest |reward|, at least 1);
    or the largest |discounted return| of an episode so far, at least 1."""
    optimism: Literal["full", "levels"] = "full"
    """How optimistic `ucb` is: Q + β√u always, or Q + βℓ√u with a level ℓ drawn for each episode: 0 with probability
    `greedy_share`, else uniformly from [0, 1]. Targets of u always use ℓ = 1."""
    greedy_share: float = 0.5
    """Use what is known (ℓ = 0) in at least this share of the episodes, and of the steps."""
    levels_wait: bool = False
    """Keep ℓ = 1 until a reward has been seen that is positive, or a cost of at least 1: before, there is nothing to use."""
    warmup_policy: Literal["agent", "random"] = "agent"
    """Who acts before the first update: the agent itself, or a uniform random policy, as in Mnih et al. 2015."""
    epsilon_start: float = 0.0
    """ε at the start; it stays there until the warm-up ends."""
    epsilon_end: float = 0.0
    """ε at last."""
    epsilon_steps: int = 0
    """Steps over which ε falls linearly from start to end, after the warm-up."""
    epsilon_evaluation: float = 0.05
    """ε of the greedy policy that `evaluate` runs."""

    features: Literal["none", "learned", "random", "both", "bins", "windows", "auto"] = "none"
    """Features in ν = φᵀΣφ: the last hidden layer; random Fourier features of the observation; both side by side; random
    binning features of the whole observation or of small windows of an image, whose Σ is diagonal (counts). auto: windows
    for the nature network, bins for the others."""
    random_features: int = 256
    """Number of Fourier features."""
    bin_tables: int = 16
    """Number of random grids of the binning features."""
    prior: float = 1.0
    """μ: Σ starts as μI."""
    normalise_features: bool = True
    """Scale φ to |φ| = 1, so that ν ≤ μ in any network and float32 suffices."""
    noise: Literal["known", "learned"] = "known"
    """Of the outcomes of a decision: taken to have variance 1, as in ν = φᵀΣφ, or σ²φᵀΣφ with σ² learned from the errors of
    Q (a Normal-Gamma belief in each cell of the bins; for other features, one for each action). Where Q
    makes no error, ν then falls with the square of the visits."""
    forgetting: float = 1.0
    """What is left of Σ⁻¹ - I/μ after 10,000 steps; below 1, the features of the past fade, whenever Σ is refreshed."""
    sigma_from: Literal["stream", "replay"] = "stream"
    """Σ as it grew with the features of each time, or computed anew from the replay, with the features of now, after
    every chunk of steps."""

    u_predicts: Literal["total", "continuation"] = "total"
    """The u-network's output is u itself, or only what follows: u = φᵀΣφ + output, so that ν acts at once."""
    u_network: Literal["none", "head", "own", "auto"] = "none"
    """A head on the features of Q, which it cannot change, or a network of its own, with a trunk like that of Q. auto: own
    for the mlp, where it is cheap, and a head for the others."""
    u_width: int = 512
    """Width of the hidden layer of the head."""
    u_discount: float = 0.0
    """γ_u: its square discounts u in the place of γ². 0 means γ."""
    u_data: Literal["stream", "replay"] = "stream"
    """The u-network regresses on each decision once, in order, or on the replay with a target network."""
    u_learning_rate: float = 1e-3
    """Of the RMSProp that trains the u-network."""
    n: int = 1
    """Steps of ν in the target of u (stream only)."""
    trace_decay: float = 1.0
    """λ: below 1, targets of fewer than n steps are mixed in (stream only)."""

    bonus_scale: float = 0.0
    """Added to the reward, after clipping: bonus_scale·√(φᵀΣφ)."""

    ensemble: int = 1
    """Number of Q-networks."""
    ensemble_of: Literal["auto", "networks", "heads"] = "auto"
    """Whole networks (auto for vector observations), or linear heads on one trunk (auto for images)."""
    randomised_prior: float = 0.0
    """Scale of the fixed random network added to each Q-network."""
    mask_probability: float = 1.0
    """With which each network of an ensemble sees a transition."""

    discount: float = 0.99
    """γ."""
    double_q: bool = False
    """Choose the next action with the online network, value it with the target network (van Hasselt et al. 2016)."""
    q_steps: int = 0
    """Rewards in the target of Q before it bootstraps, without correction for the policy; cut where episodes end."""
    initial_values: Literal["zero", "random"] = "zero"
    """How the output layers of Q and u start: at zero, so that Q = 0 and u is ν alone, or with random weights."""
    network: str | Callable[..., Any] | OwnNetwork = "auto"
    """The trunk of Q: dense layers (mlp), MinAtar's small convolutional network (minatar), that of Mnih et al. 2015 (nature),
    or your own Flax module, observations (batch, …) -> features (batch, D): as module:NAME of its class or of a function that
    makes it, or these from Python, or the module itself."""
    hidden: tuple[int, ...] = (64, 64)
    """Layers of the mlp."""
    optimiser: Literal["auto", "rmsprop", "adam"] = "auto"
    """Of Q."""
    learning_rate: float = 0.0
    """Of Q."""
    batch_size: int = 0
    """Transitions in an update."""
    replay_size: int = 0
    """Decisions that are remembered."""
    warmup: int = 0
    """Steps before the first update."""
    update_period: int = 0
    """Steps between updates."""
    target_period: int = 0
    """Updates between copies to the target network of Q."""
    u_target_period: int = 0
    """Updates between copies to the target network of u (replay only): news of what is unknown should travel fast."""
    reward_unit: float = 0.0
    """Rewards are divided by this in what is learned, never in what is reported, so that β and learning rates mean the same
    whatever rewards are counted in; 0 leaves it to the environment: the largest |reward| that a short random play met
    for those of Gymnasium, 1 elsewhere."""
    reward_clip: float = 0.0
    """Then they are cut to ±this; inf cuts nothing, 0 leaves it to the environment: 1 in Atari games, inf elsewhere."""

    def __post_init__(self) -> None:
        kinds = _kinds()
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), kinds[field.name]
            if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
                choices = ", ".join(typing.get_args(kind))
                raise UsageError(f"{field.name}={value!r}: choose one of {choices}")
            wanted = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}.get(kind)
            if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool)):
                raise UsageError(f"{field.name}={value!r}: expected {kind.__name__}")
        for name, low, high, why in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name}={value!r}: {why}")
        named = isinstance(self.network, str) and (self.network in NETWORKS or ":" in self.network)
        if not named and not callable(self.network) and not isinstance(self.network, OwnNetwork):
            raise UsageError(
                f"network={self.network!r}: choose one of {', '.join(NETWORKS)}, or your own, module:NAME of a Flax module"
            )
        widths = self.hidden if isinstance(self.hidden, tuple) else ()
        if not widths or not all(isinstance(width, int) and width > 0 for width in widths):
            raise UsageError(f"hidden={self.hidden!r}: give at least one positive width, such as (64, 64)")
        self._check_combination()

    def _check_combination(self) -> None:
        needs_u = self.policy in ("noise-per-step", "noise-per-episode", "ucb", "unstructured-noise")
        if needs_u and (self.features == "none" or self.u_network == "none"):
            raise UsageError(
                f"policy={self.policy!r} acts on u: set features (is {self.features!r}) and u_network "
                f"(is {self.u_network!r}), or start from a ube preset"
            )
        if (self.bonus_scale or self.u_network != "none") and self.features == "none":
            raise UsageError("features='none': ν needs features; choose learned, random, both or bins")
        if self.u_data == "replay" and (self.n != 1 or self.trace_decay != 1.0):
            raise UsageError(
                f"n={self.n}, trace_decay={self.trace_decay:g}: the replay gives 1-step targets; set u_data='stream' or n=1"
            )
        if self.sigma_from == "replay" and self.features not in ("learned", "both"):
            raise UsageError(
                f"sigma_from='replay': only learned features drift (features={self.features!r}); set stream"
            )
        if self.noise == "learned" and self.features == "none":
            raise UsageError("noise='learned': there is no ν without features; set known")
        if self.forgetting < 1 and self.sigma_from == "replay":
            raise UsageError(
                f"forgetting={self.forgetting:g}: the replay forgets by itself; set 1, or sigma_from='stream'"
            )
        if self.forgetting < 1 and self.features in ("bins", "windows", "auto"):
            raise UsageError(f"forgetting={self.forgetting:g}: binning features do not drift; set 1, or other features")
        if self.policy != "ucb" and (self.optimism != "full" or self.levels_wait):
            raise UsageError(f"optimism={self.optimism!r}, policy={self.policy!r}: only ucb has levels; set policy=ucb")
        if self.levels_wait and self.optimism == "full":
            raise UsageError("levels_wait=True, optimism='full': there are no levels to wait with; set optimism=levels")
        if (self.policy == "ensemble") != (self.ensemble > 1):
            raise UsageError(
                f"policy={self.policy!r}, ensemble={self.ensemble}: the policy `ensemble` needs 2 or more, and only it"
            )

    @property
    def uses_u(self) -> bool:
        """Whether there is a u-network."""
        return self.u_network != "none"

    @property
    def nu_is_bounded(self) -> bool:
        """Whether ν ≤ μ: φ is of unit length at most, which random Fourier features are only on average."""
        return self.features in ("bins", "windows") or (self.features == "learned" and self.normalise_features)


@functools.cache  # a suite may have thousands of agents
def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(AgentConfig)


_RANGES = (
    ("beta", 1e-30, 1e30, "β must be positive and finite; for no exploration use policy=epsilon-greedy with ε = 0"),
    ("prior", 1e-30, 1e6, "μ must be positive, and within 1e6 for float32; 1 is a good start"),
    ("n", 1, 100_000, "n must be at least 1"),
    ("u_width", 1, 65_536, "at least 1"),
    ("u_discount", 0.0, 1.0, "γ_u must be within 0..1; above 1 u would grow without bound (0 means γ)"),
    ("q_steps", 0, 1_000, "within 1..1000, or 0 for the default of the network"),
    ("trace_decay", 0.0, 1.0, "λ must be within 0..1"),
    ("epsilon_start", 0.0, 1.0, "ε must be within 0..1"),
    ("epsilon_end", 0.0, 1.0, "ε must be within 0..1"),
    ("epsilon_evaluation", 0.0, 1.0, "ε must be within 0..1"),
    ("epsilon_steps", 0, math.inf, "at least 1, or 0 for the default of the network"),
    ("random_features", 1, 65_536, "at least 1"),
    ("bin_tables", 1, 1024, "at least 1"),
    ("greedy_share", 0.0, 0.99, "must be within 0..0.99"),
    ("forgetting", 0.0, 1.0, "must be within 0..1; 1 forgets nothing"),
    ("u_learning_rate", 1e-30, 1e3, "must be positive and finite"),
    ("bonus_scale", 0.0, 1e30, "must be 0 or positive and finite"),
    ("ensemble", 1, 1000, "at least 1"),
    ("randomised_prior", 0.0, 1e30, "must be 0 or positive and finite"),
    ("mask_probability", 1e-9, 1.0, "must be within 0..1, and not 0"),
    ("discount", 0.0, 1.0, "γ must be within 0..1"),
    ("learning_rate", 0.0, 1e3, "must be positive and finite, or 0 for the default of the network"),
    ("batch_size", 0, 1_000_000, "at least 1, or 0 for the default of the network"),
    ("replay_size", 0, 1e9, "at least 1, or 0 for the default of the network"),
    ("warmup", 0, 1e12, "at least 1, or 0 for the default of the network"),
    ("update_period", 0, 10_000, "within 1..10000, or 0 for the default of the network"),
    ("target_period", 0, 1e12, "at least 1, or 0 for the default of the network"),
    ("u_target_period", 0, 1e12, "at least 1, or 0 for the default of the network"),
    ("reward_unit", 0.0, 1e30, "must be positive and finite, or 0 for the default of the environment"),
    ("reward_clip", 0.0, math.inf, "must be positive, or 0 for the default of the environment; inf clips nothing"),
)

NETWORK_DEFAULTS: dict[str, dict[str, Any]] = {
    "mlp": dict(
        optimiser="adam", learning_rate=1e-3, batch_size=128, replay_size=100_000, warmup=128, update_period=1,
        target_period=50, u_target_period=4, q_steps=5, epsilon_steps=10_000,
    ),
    "minatar": dict(
        optimiser="adam", learning_rate=3e-4, batch_size=32, replay_size=100_000, warmup=5_000, update_period=4,
        target_period=250, u_target_period=250, q_steps=3, epsilon_steps=100_000,
    ),
    "nature": dict(
        optimiser="adam", learning_rate=1e-4, batch_size=32, replay_size=100_000, warmup=5_000, update_period=4,
        target_period=500, u_target_period=500, q_steps=3, epsilon_steps=50_000,
    ),
}  # fmt: skip
"""What each network takes, the same for every agent: chosen for runs of 10⁵ to 10⁷ steps. Atari's protocols replace them by
what was published, for 200 million frames."""

_UBE = AgentConfig(policy="noise-per-step", features="learned", u_network="head", warmup_policy="random")

PRESETS = {
    config.name: config
    for config in (
        AgentConfig(name="dqn", epsilon_start=1.0, epsilon_end=0.1),
        dataclasses.replace(_UBE, name="ube-1step"),
        dataclasses.replace(_UBE, name="ube-nstep", n=150),
        AgentConfig(name="bonus", epsilon_start=1.0, epsilon_end=0.1, features="learned", bonus_scale=0.1),
        AgentConfig(
            name="boot", policy="ensemble", ensemble=10, randomised_prior=3.0, mask_probability=0.5
        ),
        AgentConfig(
            name="ube-deep", policy="ucb", beta=1.0, beta_unit="rewards", optimism="levels", levels_wait=True,
            features="auto", noise="learned", u_predicts="continuation", u_network="auto", u_data="replay",
            u_learning_rate=3e-3, epsilon_start=1.0, epsilon_end=0.05,
        ),
        AgentConfig(name="greedy"),
        AgentConfig(name="dqn-small-epsilon", epsilon_start=1.0, epsilon_end=0.01),
        dataclasses.replace(_UBE, name="unstructured-noise", policy="unstructured-noise"),
    )
}  # fmt: skip
"""The agents of the paper, the peer, ours, and three controls."""

ABOUT = {
    "dqn": "Mnih et al. 2015: ε-greedy, ε from 1 to 0.1",
    "ube-1step": "the paper's Algorithm 1",
    "ube-nstep": "the paper's n-step version, n = 150",
    "bonus": "the paper's intrinsic motivation: reward + 0.1 √(φᵀΣφ)",
    "boot": "bootstrapped DQN with randomised priors: the strong peer",
    "ube-deep": "ours: optimism in up to half of the episodes, on a local term that is evaluated and a rest that is learned",
    "greedy": "control: dqn without any exploration",
    "dqn-small-epsilon": "control: dqn with ε down to 0.01",
    "unstructured-noise": "control: Gaussian noise on Q of the size that ube-1step uses, equal for all states and actions",
}


def agent_config(agent: str | AgentConfig, overrides: dict[str, Any] | None = None) -> AgentConfig:
    """A preset by name, or a config, with fields replaced."""
    if isinstance(agent, str):
        if agent not in PRESETS:
            raise UsageError(f"agent {agent!r} does not exist: {nearest(agent, list(PRESETS))}")
        agent = PRESETS[agent]
    fields = [field.name for field in dataclasses.fields(AgentConfig)]
    for name in overrides or {}:
        if name not in fields:
            raise UsageError(f"{name!r} is not a field of an agent: {nearest(name, fields)}")
    changes = dict(overrides or {})
    if isinstance(changes.get("hidden"), list):  # as JSON and TOML have it
        changes["hidden"] = tuple(changes["hidden"])
    return dataclasses.replace(agent, **changes)


def difference(config: AgentConfig) -> str:
    """The fields in which a config is not the default, as they would be given to --set."""
    default = AgentConfig()
    names = [field.name for field in dataclasses.fields(config) if field.name != "name"]
    changed = [name for name in names if getattr(config, name) != getattr(default, name)]
    fields = as_fields(config)
    return " ".join(f"{name}={fields[name]}" for name in changed)


def as_fields(config: AgentConfig) -> dict[str, Any]:
    """For a file: a network of one's own by its name."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    network = config.network
    if not isinstance(network, str):
        fields["network"] = network.place if isinstance(network, OwnNetwork) else place_of(network)
    return fields


def parse_overrides(words: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """KEY=VALUE words -> (fields of the agent, arguments of the environment, which start with `env.`)."""
    kinds = {name: kind for name, kind in _kinds().items() if name != "name"}
    fields: dict[str, Any] = {}
    env_args: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r}: write KEY=VALUE, such as beta=0.1 or env.size=20")
        if name.startswith("env."):
            env_args[name.removeprefix("env.")] = _literal(text)
        elif name not in kinds:
            raise UsageError(f"{name!r} is not a field of an agent: {nearest(name, list(kinds))}")
        else:
            fields[name] = _parsed(name, text, kinds[name])
    return fields, env_args


def _literal(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def _parsed(name: str, text: str, kind: Any) -> Any:
    if kind is str or typing.get_origin(kind) is Literal or name == "network":
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float):
            return kind(text.replace("_", ""))
        return tuple(int(part) for part in text.strip("()").split(",") if part)
    except (ValueError, KeyError):
        wanted = getattr(kind, "__name__", str(kind)).replace("tuple", "numbers, such as 64,64")
        raise UsageError(f"{name}={text}: expected {wanted}") from None
