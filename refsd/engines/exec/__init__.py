"""Any program that speaks the protocol of protocol.md."""
