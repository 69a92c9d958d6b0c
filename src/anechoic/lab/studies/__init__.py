"""The runs behind `anechoic demo` and `anechoic train`. Needs the extras torch and plot."""
