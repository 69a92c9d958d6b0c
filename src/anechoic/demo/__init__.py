"""Will a flight arrive late? Private training on embedded data, with a report: `anechoic demo`."""
