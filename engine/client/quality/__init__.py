"""Quality: the gate checks rows before they are published, and the audit checks what is stored."""
