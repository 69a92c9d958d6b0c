"""plan(): from a training setting to a ranked table of mechanisms and a chosen one.

Every class of strategies that fits the noise state is compared under every scheme that is permitted, a fixed
order always among them: permitting more never gives a worse choice. Strategies are designed for what the
optimizer adds up (its momentum, weight decay and learning rates) and for what is kept of the run, and ranked
by the predicted error of that at equal (epsilon, delta). Candidates are ranked by estimates of their noise;
all that may be the best by them are calibrated.
"""
