"""Private selection: the best of a random number of whole runs, inside one guarantee.

selection = anechoic.select(mechanism, mean=10, score_on="public", epsilon=1)
chosen = selection.run(train, candidates=[0.1, 0.3, 1.0])
print(selection)
"""

from anechoic.selection import statement_text  # noqa: F401 - it registers what a selection says
