"""Settings: file, environment, secrets and the verbs that show them."""
