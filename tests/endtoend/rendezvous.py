"""What members of two do to meet: the beginning of a program that each of them runs."""

MEETING = """
import os, socket, time
host, port = os.environ["WINDLASS_HOSTS"].split(",")[0].rsplit(":", 1)
rank = int(os.environ["RANK"])
def heard():
    guest, _ = socket.create_server((host, int(port))).accept()
    return guest.makefile().readline()
def say(words):
    for _ in range(600):
        try:
            link = socket.create_connection((host, int(port)), 1)
            break
        except OSError:
            time.sleep(0.1)
    link.sendall(words.encode() + b"\\n")
"""
