"""What `greylag import` reads: the past that a Prometheus, a VictoriaMetrics or their like keep."""
