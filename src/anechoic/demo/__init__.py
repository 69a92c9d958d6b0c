"""`anechoic demo`: its data, its runs and its report. Needs the extras torch and plot."""
