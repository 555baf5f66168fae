"""Made-up slides, bags and cohorts with a planted signal, for the demo, the tests and the docs."""
