"""The rules of `queue` groups: deliveries, redelivery and dead letters."""
