"""Processes, locks, shared memory, an asyncio unix server and a database."""

import asyncio
import multiprocessing as mp
import os
import sqlite3
from multiprocessing import shared_memory


def square(n):
    return n * n


def count(lock, value):
    for _ in range(10):
        with lock:
            value.value += 1


def poke(name):
    segment = shared_memory.SharedMemory(name)
    segment.buf[0] = 7
    segment.close()


async def ping(path):
    async def serve(reader, writer):
        writer.write(b"pong" if await reader.readline() == b"ping\n" else b"?")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"ping\n")
    answer = await reader.read()
    writer.close()
    server.close()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, os.getpid)
    return answer.decode()


def main():
    fork = mp.get_context("fork")
    with fork.Pool(3) as pool:
        total = sum(pool.map(square, range(10)))
    lock, value = fork.Lock(), fork.Value("i", 0, lock=False)
    children = [fork.Process(target=count, args=(lock, value)) for _ in range(4)]
    for c in children:
        c.start()
    for c in children:
        c.join()
    segment = shared_memory.SharedMemory(create=True, size=64)
    child = fork.Process(target=poke, args=(segment.name,))
    child.start()
    child.join()
    shared = segment.buf[0]
    segment.close()
    segment.unlink()
    answer = asyncio.run(ping("server.sock"))
    with sqlite3.connect("test.db") as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table t (n integer)")
        db.executemany("insert into t values (?)", [(1,), (2,)])
        (rows,) = db.execute("select sum(n) from t").fetchone()
    with mp.get_context("spawn").Pool(1) as pool:
        (spawned,) = pool.map(square, [3])
    print(f"pool {total}, lock {value.value}, shared {shared}, asyncio {answer}, sqlite {rows}, spawn {spawned}")


if __name__ == "__main__":
    main()
