"""REST API of the dashboard for programs: tokens, endpoints, OpenAPI document."""
