"""Training loops of other packages, run by their own interpreter: nothing here imports ube.

python -m venv peers && peers/bin/pip install torch==2.13.0 stable-baselines3 gymnasium MinAtar ale-py opencv-python-headless
python -m benchmarks.training_rate --peers peers/bin/python
"""
