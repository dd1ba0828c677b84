"""Embodied RL: a vision-language-action policy learns by PPO or GRPO in a robot simulator.

`contracts` says what a policy and a simulator are, `presets` how large, `trainer` holds the loop with the
structure and names of RLinf, `schedules` says what runs where and when.
"""
