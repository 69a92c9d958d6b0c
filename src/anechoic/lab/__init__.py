"""What `anechoic demo` and `anechoic train` need: data, studies, reports; the command line reads it."""
