"""What is asked, decided and known: values only, a module per subject, and `state`, which composes what is known."""
