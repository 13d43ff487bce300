"""Stable-Baselines3's DQN with its exploration replaced: optimism about what is uncertain, Q + β√u, in the place of ε-greedy.

    pip install 'ube-rl[sb3]'

`--agent dqn` runs the original for comparison. On a machine that has other work, set OPENBLAS_NUM_THREADS=1: products as
small as these wait for a second thread far longer than they take.
"""

import argparse
import copy

import numpy as np
import torch
from deep_sea import DeepSea, summary
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import create_mlp

from ube.acting import perturbed
from ube.backups import ube_target
from ube.linear import InverseCounts


class UbeDQN(DQN):
    """For observations that are vectors of numbers of order one; one environment or many; n_steps=1.

    `predict(obs, deterministic=True)` is greedy, as DQN's.
    """

    def __init__(self, *args, beta=2.0, n_features=128, length_scale=0.5, **kwargs):
        self.beta, self.n_features, self.length_scale = beta, n_features, length_scale
        self.counts = None
        super().__init__(*args, **kwargs)

    def _setup_model(self):
        super()._setup_model()
        n_inputs, n_actions = int(np.prod(self.observation_space.shape)), int(self.action_space.n)
        self.u_net = torch.nn.Sequential(*create_mlp(n_inputs, n_actions, [50, 50])).to(self.device)
        self.u_net_target = copy.deepcopy(self.u_net)
        self.u_optimizer = torch.optim.Adam(self.u_net.parameters(), self.lr_schedule(1.0))
        if self.counts is None:  # a loaded agent brings its own
            rng = np.random.default_rng(self.seed)
            self.frequencies = rng.normal(0.0, 1 / self.length_scale, (n_inputs, self.n_features))
            self.phases = rng.uniform(0, 2 * np.pi, self.n_features)
            self.counts = InverseCounts(self.n_features, n_actions)

    def phi(self, obs):
        """Fixed random Fourier features of length about 1, (N, n_features): nearby observations share their counts."""
        flat = np.asarray(obs, np.float64).reshape(len(obs), -1)
        return (2 / self.n_features) ** 0.5 * np.cos(flat @ self.frequencies + self.phases)

    def u(self, net, obs):
        """ν, how uncertain this step is, plus what the u-network says of later ones, (N, A)."""
        nu = self.counts.local_uncertainty(self.phi(obs.cpu()))
        return torch.as_tensor(nu, dtype=torch.float32, device=self.device) + net(obs.float().flatten(1)).relu()

    def optimistic(self, q, u):
        return perturbed(q, u, zeta=1.0, beta=self.beta).argmax(1)

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        if deterministic:
            return super().predict(observation, state, episode_start, deterministic)
        obs, many = self.policy.obs_to_tensor(observation)
        with torch.no_grad():
            actions = self.optimistic(self.q_net(obs), self.u(self.u_net, obs)).cpu().numpy()
        return (actions if many else actions[0]), state

    def _store_transition(self, replay_buffer, buffer_action, *rest):
        self.counts.update_batch(self.phi(self._last_obs), buffer_action.reshape(-1))
        super()._store_transition(replay_buffer, buffer_action, *rest)

    def train(self, gradient_steps, batch_size=100):
        super().train(gradient_steps, batch_size)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            obs, next_obs = batch.observations, batch.next_observations
            with torch.no_grad():
                u_next = self.u(self.u_net_target, next_obs)
                next_action = self.optimistic(self.q_net_target(next_obs), u_next)
                target = ube_target(0.0, 1 - batch.dones, self.gamma, u_next.gather(1, next_action[:, None]))
            later = self.u_net(obs.float().flatten(1)).gather(1, batch.actions)
            self.u_optimizer.zero_grad()
            torch.nn.functional.smooth_l1_loss(later, target).backward()
            self.u_optimizer.step()

    def _on_step(self):
        super()._on_step()
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            self.u_net_target.load_state_dict(self.u_net.state_dict())

    def _excluded_save_params(self):
        return [*super()._excluded_save_params(), "u_net", "u_net_target", "u_optimizer"]

    def _get_torch_save_params(self):
        modules, variables = super()._get_torch_save_params()
        return [*modules, "u_net", "u_net_target", "u_optimizer"], variables


def train(agent, size, episodes, seed):
    """The trained model, and the returns of its episodes."""
    env = Monitor(DeepSea(size, seed))
    settings = {"learning_rate": 2e-3, "batch_size": 64, "learning_starts": 64, "train_freq": 1}
    settings |= {"target_update_interval": 4, "policy_kwargs": {"net_arch": [50, 50]}, "seed": seed, "device": "cpu"}
    if agent == "dqn":
        model = DQN("MlpPolicy", env, exploration_initial_eps=0.1, exploration_final_eps=0.1, **settings)
    else:
        model = UbeDQN("MlpPolicy", env, **settings)
    model.learn(episodes * size)
    return model, env.get_episode_rewards()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Stable-Baselines3's DQN, exploring by UBE, on DeepSea.")
    parser.add_argument("--agent", choices=["ube", "dqn"], default="ube")
    parser.add_argument("--size", type=int, default=10, help="rows and columns of DeepSea")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="decides the environment, the weights and the exploration")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, returns = train(args.agent, args.size, args.episodes, args.seed)
    print(f"SB3 {type(model).__name__}, DeepSea {args.size}, seed {args.seed}: {summary(returns)}")
