"""Train the ensemble head by reinforcement learning on rollouts of the speculative decoder."""
