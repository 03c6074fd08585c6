"""Stock Kubernetes clients against the embedded server: they must not notice the difference."""
