"""Several arms of noise on one task, trained side by side: how they are run, shown and written down."""
