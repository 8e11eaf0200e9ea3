"""The pages of the console: each module reads what its pages show, and names their templates."""
