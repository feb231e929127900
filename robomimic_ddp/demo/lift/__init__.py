"""robosuite's Lift as a demo: scripted demonstrations, training, rollouts by the host's own loop.

Needs robosuite; scripts/demo_robosuite.sh makes an environment that has it.
"""
