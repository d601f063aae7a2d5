"""An application in another process, asked over gRPC or HTTP: the same messages on both wires."""
