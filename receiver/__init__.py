"""The customer kit: verify webhooks and turn redelivery into exactly one effect."""
