"""Data-parallel training with nothing but NumPy: each worker has a shard, gradients are averaged.

    windlass run -w 2 -- python examples/train.py

Workers find each other by variables that every Windlass job has: RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. Worker 0 adds the gradients up and sends the mean back.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import numpy as np

import windlass

SAMPLES, FEATURES = 2000, 20


def main() -> None:
    options = parse()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rng = np.random.default_rng(7)
    truth = rng.normal(size=FEATURES)
    inputs = rng.normal(size=(SAMPLES, FEATURES))
    answers = inputs @ truth + rng.normal(scale=0.1, size=SAMPLES)
    inputs, answers = inputs[rank::size], answers[rank::size]
    print(f"worker {rank} of {size}: {len(inputs)} of {SAMPLES} samples", flush=True)
    peers = meet(rank, size, options.port)
    weights = np.zeros(FEATURES)
    for epoch in range(1, options.epochs + 1):
        errors = inputs @ weights - answers
        weights -= options.rate * average(rank, peers, inputs.T @ errors / len(inputs))
        loss = float(np.mean(errors**2))
        print(f"epoch {epoch:2}  loss {loss:.4f}", flush=True)
        if rank == 0:
            windlass.report(epoch / options.epochs, loss=loss)
        time.sleep(options.pause)
    print(f"done: {np.linalg.norm(weights - truth):.4f} away from the truth", flush=True)


def meet(rank: int, size: int, port: int) -> list[socket.socket]:
    """Worker 0: a connection to each of the others; the others: one to worker 0."""
    if size == 1:
        return []
    where = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", port))
    if rank == 0:
        with socket.create_server(where) as server:
            return [server.accept()[0] for _ in range(size - 1)]
    deadline = time.monotonic() + 60
    while True:
        try:
            return [socket.create_connection(where)]
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def average(rank: int, peers: list[socket.socket], mine: np.ndarray) -> np.ndarray:
    """The mean of all workers' gradients."""
    if rank == 0:
        mean = np.mean([mine, *(receive(peer) for peer in peers)], axis=0)
        for peer in peers:
            peer.sendall(mean.tobytes())
        return mean
    peers[0].sendall(mine.tobytes())
    return receive(peers[0])


def receive(peer: socket.socket) -> np.ndarray:
    data = b""
    while len(data) < FEATURES * 8:
        piece = peer.recv(FEATURES * 8 - len(data))
        if not piece:
            raise SystemExit("another worker is gone")
        data += piece
    return np.frombuffer(data)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds, to have time to watch")
    parser.add_argument("--port", type=int, default=29519, help="where there is no MASTER_PORT")
    return parser.parse_args()


if __name__ == "__main__":
    main()
