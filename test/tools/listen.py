"""listen.py PORTS HEARD: one TCP and one UDP listener on 127.0.0.1.

Writes both ports to PORTS, and a line to HEARD for each thing that it hears:
"tcp TEXT" or "udp TEXT". A connection that says nothing is "tcp ".
"""

import os
import selectors
import socket
import sys


def main():
    ports, heard = sys.argv[1:]
    log = open(heard, "a", buffering=1)
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    with open(ports + ".new", "w") as f:
        f.write(f"{tcp.getsockname()[1]} {udp.getsockname()[1]}\n")
    os.rename(ports + ".new", ports)
    wait = selectors.DefaultSelector()
    wait.register(tcp, selectors.EVENT_READ)
    wait.register(udp, selectors.EVENT_READ)
    while True:
        for key, _ in wait.select():
            if key.fileobj is udp:
                text = udp.recv(256)
                kind = "udp"
            else:
                peer, _ = tcp.accept()
                peer.settimeout(2)
                kind = "tcp"
                try:
                    text = peer.recv(256)
                except OSError:
                    text = b""
                peer.close()
            log.write(f"{kind} {text.decode(errors='replace').strip()}\n")


main()
